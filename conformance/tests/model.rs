// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model as a device, and the engine and the model at each other's results: what one seals the other opens, what one
//! packs the other unpacks, and both refuse the same.

use memlift_conformance::{Plan, run};
use memlift_engine::page::{MAX_PACKED_BYTES, METHODS, Method, PAGE_BYTES, Packer};
use memlift_engine::run::{Hands, Inline};
use memlift_model::Model;
use memlift_spec::{
    Backend, Completion, Descriptor, Effort, Flags, Format, Opcode, PackBlock, SealBlock, Status,
};
use std::sync::Arc;

fn engine() -> Inline {
    Inline::new(4, Arc::new(Hands::new(memlift_kernels::active(), usize::MAX)))
}

fn address<T: ?Sized>(of: *const T) -> u64 {
    of.cast::<u8>().expose_provenance() as u64
}

fn settled(backend: &dyn Backend, mut descriptor: Descriptor) -> Completion {
    let mut record = Completion::PENDING;
    descriptor.add_flags(Flags::COMPLETION_VALID.with(Flags::REQUEST_COMPLETION));
    descriptor.completion_address = address(&raw mut record);
    // SAFETY: callers own what the descriptor names; both backends run in `poll`, so nothing is in flight afterwards.
    #[expect(unsafe_code, reason = "descriptors name memory by address")]
    unsafe {
        backend.submit(&[descriptor]).unwrap();
        while backend.poll() == 0 {}
        (&raw const record).read_volatile()
    }
}

fn code(
    backend: &dyn Backend,
    opcode: Opcode,
    format: Format,
    source: &[u8],
    room: usize,
) -> Result<Vec<u8>, Status> {
    let mut target = vec![0_u8; room];
    let mut block = PackBlock::pack(format, Effort::Default, room as u64).with_hints(1);
    block.opcode = opcode.0;
    block.effort = if opcode == Opcode::PACK { block.effort } else { 0 };
    let (from, to) = (address(source.as_ptr()), address(target.as_mut_ptr()));
    let mut descriptor = Descriptor::pack(from, to, source.len() as u32, address(&raw const block));
    descriptor.flags_opcode = Descriptor::new(opcode, Flags::NONE).flags_opcode;
    let done = settled(backend, descriptor);
    if done.status() != Status::SUCCESS {
        return Err(done.status());
    }
    assert_eq!(done.bytes_completed as usize, source.len());
    target.truncate(done.value as usize);
    Ok(target)
}

fn message(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + seed).wrapping_mul(index / 19 + 7) >> 3) as u8).collect()
}

#[test]
fn the_model_conforms_through_this_process_s_memory() {
    let plan = Plan::from_environment();
    if let Err(failure) = run(&Model::new(3), &Plan { cases: plan.cases / 3, ..plan }) {
        panic!("model: {failure}");
    }
}

#[test]
fn what_one_packs_the_other_unpacks() {
    let (engine, model) = (engine(), Model::new(1));
    for (seed, bytes) in [0, 1, 100, 4096, 16_384, 65_535, 70_000, 300_000].into_iter().enumerate() {
        let message = message(bytes, seed);
        for format in Format::ALL {
            let room = bytes + bytes / 8 + 64;
            let stored = code(&model, Opcode::PACK, format, &message, room).unwrap();
            assert_eq!(
                code(&engine, Opcode::UNPACK, format, &stored, bytes),
                Ok(message.clone()),
                "{format:?}"
            );
            let small = code(&engine, Opcode::UNPACK, format, &stored, bytes.saturating_sub(1));
            assert!(bytes == 0 || small == Err(Status::TARGET_TOO_SMALL), "{format:?} of {bytes} bytes");
            // The model reads no compressed blocks of Zstandard.
            if format != Format::Zstd {
                let packed = code(&engine, Opcode::PACK, format, &message, room).unwrap();
                assert_eq!(code(&model, Opcode::UNPACK, format, &packed, bytes), Ok(message.clone()));
            }
        }
    }
}

/// Every way to pack a page, written down twice.
#[test]
fn the_model_reads_packed_pages_of_every_method() {
    let values: [fn(u64) -> u64; 5] = [
        |index| 1_700_000_000_000_000_000 + index * 1_000_000_007,
        |index| if index.is_multiple_of(97) { 1 << 63 } else { index * 7919 % 1000 },
        |index| u64::from((index as f32 * 1.25).to_bits()) | u64::from((index as f32).to_bits()) << 32,
        |index| {
            ((index * 7919 % 20_000) as f64 / if index.is_multiple_of(90) { 3.0 } else { 100.0 }).to_bits()
        },
        |index| index % 100 * 0x3_0000_0005,
    ];
    let (mut packer, mut seen) = (Packer::new(), std::collections::BTreeSet::new());
    for value in values {
        let mut page = [0; PAGE_BYTES];
        for (index, number) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *number = value(index as u64).to_le_bytes();
        }
        for method in METHODS {
            let mut stream = vec![0; MAX_PACKED_BYTES + 2];
            let Some(bytes) = packer.pack_as(method, &page, &mut stream[2..]) else { continue };
            stream.truncate(bytes + 2);
            stream[..2].copy_from_slice(&(bytes as u16).to_le_bytes());
            stream.extend([0, 0x60]);
            let dense = method as u8 >= Method::Dense as u8 && method != Method::Decimal8;
            match memlift_model::naive::unpack(Format::Pages, &stream, PAGE_BYTES) {
                Ok(done) => assert!(done.bytes == page && done.read == stream.len(), "{method:?}"),
                // The model reads no compressed blocks of Zstandard.
                Err(status) => assert!(dense && status == Status::BAD_FORMAT, "{method:?}: {status}"),
            }
            seen.insert(method as u8);
            let engine = engine();
            assert_eq!(code(&engine, Opcode::UNPACK, Format::Pages, &stream, PAGE_BYTES), Ok(page.to_vec()));
        }
    }
    assert_eq!(seen.len(), METHODS.len(), "some method packed none of the pages: {seen:?}");
}

#[test]
fn what_one_seals_the_other_opens() {
    let (engine, model) = (engine(), Model::new(1));
    let (key, aad) = (message(32, 1), message(77, 2));
    for bytes in [0, 1, 15, 16, 17, 255, 4096, 16_385, 70_000] {
        let plain = message(bytes, 3);
        for key_bytes in [16, 32] {
            let seal = |backend: &dyn Backend, source: &[u8], tag: Option<[u8; 16]>| {
                let mut target = vec![0xee_u8; source.len()];
                let mut block =
                    SealBlock::open(address(key.as_ptr()), key_bytes, [4; 12], tag.unwrap_or_default())
                        .with_aad(address(aad.as_ptr()), aad.len() as u64)
                        .with_hints(1);
                block.opcode = if tag.is_some() { Opcode::OPEN.0 } else { Opcode::SEAL.0 };
                let (from, to) = (address(source.as_ptr()), address(target.as_mut_ptr()));
                let mut descriptor = Descriptor::seal(from, to, source.len() as u32, address(&raw mut block));
                descriptor.flags_opcode = Descriptor::new(Opcode(block.opcode), Flags::NONE).flags_opcode;
                let done = settled(backend, descriptor);
                (done.status(), target, std::hint::black_box(&block).tag)
            };
            let sealed = seal(&engine, &plain, None);
            assert_eq!(sealed, seal(&model, &plain, None), "{bytes} bytes");
            let (_, cipher, tag) = sealed;
            let mut wrong = tag;
            wrong[bytes % 16] ^= 0x80;
            for backend in [&engine as &dyn Backend, &model] {
                let opened = seal(backend, &cipher, Some(tag));
                assert_eq!(opened, (Status::SUCCESS, plain.clone(), tag), "{}", backend.name());
                let refused = seal(backend, &cipher, Some(wrong));
                assert_eq!(refused, (Status::WRONG_TAG, vec![0; bytes], wrong), "{}", backend.name());
            }
        }
    }
}
