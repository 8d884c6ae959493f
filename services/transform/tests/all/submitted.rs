// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps that the engine runs meanwhile, on private buffers and on regions that others can change.

use crate::corpus::{NONCE, key, noise, text};
use memlift_engine::region::{Region, RegionOffset, RegionOptions};
use memlift_engine::submit::OperationError;
use memlift_spec::Status;
use memlift_transform::{Effort, Format, Lease, Source, Step, Submission, Target, Transform, copy};
use std::sync::Arc;

#[test]
fn sealed_and_opened_by_ticket_small_and_large() {
    let transform = Transform::global();
    let key = key();
    for bytes in [0, 1, 5000, 70_000, 3 << 20] {
        let plain = text(bytes);
        let mut cipher = vec![0; bytes];
        let seal = Step::Seal { key: &key, nonce: NONCE, aad: b"z" };
        let tag = copy(seal, &plain, &mut cipher).unwrap().tag.unwrap();
        let submission = Submission::seal(plain.clone(), Arc::clone(&key), NONCE, b"z".to_vec());
        let done = transform.submit(submission).unwrap().wait().unwrap();
        assert_eq!(done.tag(), Some(tag));
        assert_eq!(done.into_target().unwrap().into_vec().unwrap(), cipher);
        for (tag, right) in [(tag, true), ([0; 16], false)] {
            let open = Submission::Open {
                source: cipher.clone().into(),
                target: Target::zeroed(bytes),
                key: Arc::clone(&key),
                nonce: NONCE,
                aad: b"z".to_vec(),
                tag,
            };
            match transform.submit(open).unwrap().wait() {
                Ok(done) => {
                    assert!(right);
                    assert_eq!(done.into_target().unwrap().into_vec().unwrap(), plain);
                }
                Err(OperationError::Failed { status, operation }) => {
                    assert!(!right && status == Status::WRONG_TAG);
                    let target = operation.into_target().unwrap().into_vec().unwrap();
                    assert!(target.iter().all(|&byte| byte == 0));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn packed_and_unpacked_by_ticket_in_private_and_shared_memory() {
    let transform = Transform::global();
    let key = key();
    let region = Arc::new(Region::anonymous(16 << 20, &RegionOptions::default()).unwrap());
    for source in [text(10_000), noise(70_000), text(2_500_000), Vec::new()] {
        let bytes = source.len();
        let packed = transform
            .submit(Submission::pack(source.clone(), Format::Gzip, Effort::Default))
            .unwrap()
            .wait()
            .unwrap();
        let packed = packed.into_target().unwrap().into_vec().unwrap();
        let unpack = |source: Source, target: Target| {
            transform.submit(Submission::Unpack { source, target, format: Format::Gzip }).unwrap().wait()
        };
        let done = unpack(packed.clone().into(), Target::zeroed(bytes)).unwrap();
        assert_eq!(done.into_target().unwrap().into_vec().unwrap(), source);
        let cut: Vec<u8> = packed[..packed.len() - 1].into();
        let failed = unpack(cut.into(), Target::zeroed(bytes)).unwrap_err();
        assert!(matches!(failed, OperationError::Failed { status: Status::CORRUPT_STREAM, .. }));
        if bytes > 0 {
            let failed = unpack(packed.into(), Target::zeroed(bytes - 1)).unwrap_err();
            assert!(matches!(failed, OperationError::Failed { status: Status::TARGET_TOO_SMALL, .. }));
            // The same in a region, where the bytes are staged.
            region.window(RegionOffset(0), bytes as u64).unwrap().write_from(&source).unwrap();
            let lease = |offset, bytes| Lease::new(Arc::clone(&region), RegionOffset(offset), bytes).unwrap();
            let pack = Submission::Pack {
                source: lease(0, bytes).into(),
                target: lease(4 << 20, 4 << 20).into(),
                format: Format::Gzip,
                effort: Effort::Default,
            };
            let done = transform.submit(pack).unwrap().wait().unwrap();
            let written = done.target_bytes().unwrap();
            let done = unpack(lease(4 << 20, written).into(), Target::zeroed(bytes)).unwrap();
            assert_eq!(done.into_target().unwrap().into_vec().unwrap(), source);
            let seal = Submission::Seal {
                source: lease(0, bytes).into(),
                target: lease(8 << 20, bytes).into(),
                key: Arc::clone(&key),
                nonce: NONCE,
                aad: Vec::new(),
            };
            let tag = transform.submit(seal).unwrap().wait().unwrap().tag().unwrap();
            let open = |tag| Submission::Open {
                source: lease(8 << 20, bytes).into(),
                target: lease(12 << 20, bytes).into(),
                key: Arc::clone(&key),
                nonce: NONCE,
                aad: Vec::new(),
                tag,
            };
            transform.submit(open(tag)).unwrap().wait().unwrap();
            let mut plain = vec![0; bytes];
            let window = region.window(RegionOffset(12 << 20), bytes as u64).unwrap();
            window.read_into(&mut plain).unwrap();
            assert_eq!(plain, source);
            assert!(transform.submit(open([1; 16])).unwrap().wait().is_err());
            window.read_into(&mut plain).unwrap();
            assert!(plain.iter().all(|&byte| byte == 0));
        }
    }
}
