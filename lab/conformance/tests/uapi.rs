// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of `spec` are those of the kernel: numbers and layouts are compared with `linux/idxd.h` of this machine (Debian's
//! `linux-libc-dev`).
//!
//! - **Flow** the header's text ─▶ its enumerators and defines by name ─▶ the same numbers in `spec`; a C program that includes the header ─▶
//!   offsets of fields, and the bytes of a descriptor with bit fields set ─▶ the same in `spec`
//! - **Rule** a machine without the header, or without a C compiler, reports the part that was not run. `MEMLIFT_IDXD_H` names another header.
//!   A name of the header that is missing here fails the test too: a newer kernel has grown a word

use memlift_spec::{Completion, Descriptor, Flags, Opcode, Status};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

const OPCODES: [(&str, Opcode); 19] = [
    ("NOOP", Opcode::NOOP),
    ("BATCH", Opcode::BATCH),
    ("DRAIN", Opcode::DRAIN),
    ("MEMMOVE", Opcode::MEMMOVE),
    ("MEMFILL", Opcode::FILL),
    ("COMPARE", Opcode::COMPARE),
    ("COMPVAL", Opcode::COMPARE_PATTERN),
    ("CR_DELTA", Opcode::DELTA_CREATE),
    ("AP_DELTA", Opcode::DELTA_APPLY),
    ("DUALCAST", Opcode::DUALCAST),
    ("TRANSL_FETCH", Opcode::TRANSLATION_FETCH),
    ("CRCGEN", Opcode::CRC),
    ("COPY_CRC", Opcode::COPY_CRC),
    ("DIF_CHECK", Opcode::DIF_CHECK),
    ("DIF_INS", Opcode::DIF_INSERT),
    ("DIF_STRP", Opcode::DIF_STRIP),
    ("DIF_UPDT", Opcode::DIF_UPDATE),
    ("DIX_GEN", Opcode::DIX_GENERATE),
    ("CFLUSH", Opcode::CACHE_FLUSH),
];

const STATUSES: [(&str, Status); 29] = [
    ("NONE", Status::NONE),
    ("SUCCESS", Status::SUCCESS),
    ("SUCCESS_PRED", Status::SUCCESS_PREDICATE),
    ("PAGE_FAULT_NOBOF", Status::PAGE_FAULT),
    ("PAGE_FAULT_IR", Status::PAGE_RESPONSE_INVALID),
    ("BATCH_FAIL", Status::BATCH_FAILED),
    ("BATCH_PAGE_FAULT", Status::BATCH_LIST_FAULT),
    ("DR_OFFSET_NOINC", Status::DELTA_ORDER),
    ("DR_OFFSET_ERANGE", Status::DELTA_RANGE),
    ("DIF_ERR", Status::DIF_ERROR),
    ("BAD_OPCODE", Status::BAD_OPCODE),
    ("INVALID_FLAGS", Status::BAD_FLAGS),
    ("NOZERO_RESERVE", Status::BAD_RESERVED),
    ("XFER_ERANGE", Status::BAD_SIZE),
    ("DESC_CNT_ERANGE", Status::BAD_COUNT),
    ("DR_ERANGE", Status::BAD_DELTA_SIZE),
    ("OVERLAP_BUFFERS", Status::OVERLAP),
    ("DCAST_ERR", Status::DUALCAST_ALIGN),
    ("DESCLIST_ALIGN", Status::LIST_ALIGN),
    ("INT_HANDLE_INVAL", Status::BAD_INTERRUPT),
    ("CRA_XLAT", Status::COMPLETION_FAULT),
    ("CRA_ALIGN", Status::COMPLETION_ALIGN),
    ("ADDR_ALIGN", Status::ADDRESS_ALIGN),
    ("PRIV_BAD", Status::BAD_PRIVILEGE),
    ("TRAFFIC_CLASS_CONF", Status::BAD_TRAFFIC_CLASS),
    ("PFAULT_RDBA", Status::READBACK_FAULT),
    ("HW_ERR1", Status::HARDWARE_1),
    ("HW_ERR_DRB", Status::HARDWARE_2),
    ("TRANSLATION_FAIL", Status::TRANSLATION),
];

const FLAGS: [(&str, Flags); 15] = [
    ("FENCE", Flags::FENCE),
    ("BOF", Flags::BLOCK_ON_FAULT),
    ("CRAV", Flags::COMPLETION_VALID),
    ("RCR", Flags::REQUEST_COMPLETION),
    ("RCI", Flags::REQUEST_INTERRUPT),
    ("CRSTS", Flags::COMPLETION_STEERING),
    ("CR", Flags::CHECK_RESULT),
    ("CC", Flags::CACHE_CONTROL),
    ("ADDR1_TCS", Flags::ADDRESS1_CLASS),
    ("ADDR2_TCS", Flags::ADDRESS2_CLASS),
    ("ADDR3_TCS", Flags::ADDRESS3_CLASS),
    ("CR_TCS", Flags::COMPLETION_CLASS),
    ("STORD", Flags::STRICT_ORDER),
    ("DRDBK", Flags::READBACK),
    ("DSTS", Flags::TARGET_STEERING),
];

/// Flags of the analytics accelerator, which share the prefix.
const ANALYTICS: [&str; 6] =
    ["RD_SRC2_AECS", "RD_SRC2_2ND", "WR_SRC2_AECS_COMP", "WR_SRC2_AECS_OVFL", "SRC2_STS", "CRC_RFC3720"];

fn header() -> Option<PathBuf> {
    let path = std::env::var_os("MEMLIFT_IDXD_H").map_or("/usr/include/linux/idxd.h".into(), PathBuf::from);
    if !path.exists() {
        println!("not run: {} is not there (Debian: linux-libc-dev)", path.display());
        return None;
    }
    Some(path)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Enumerators of one enum of C, by their names without `prefix`.
fn enumerators(text: &str, name: &str, prefix: &str) -> BTreeMap<String, u64> {
    let body = text.split_once(&format!("enum {name} {{")).unwrap_or_else(|| panic!("no enum {name}")).1;
    let body = body.split_once('}').expect("an end").0;
    let (mut found, mut next) = (BTreeMap::new(), 0);
    for item in body.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name.trim(), number(value.trim()).expect("a number")),
            None => (item, next),
        };
        next = value + 1;
        found.insert(name.strip_prefix(prefix).expect("the prefix").to_owned(), value);
    }
    found
}

/// Defines that begin with `prefix`, by the rest of their names.
fn defines(text: &str, prefix: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("#define")?.split_whitespace();
        Some((words.next()?.strip_prefix(prefix)?.to_owned(), number(words.next()?)?))
    };
    text.lines().filter_map(line).collect()
}

fn compare(of: &str, found: &BTreeMap<String, u64>, ours: &[(&str, u64)], others: &[&str]) {
    for (name, value) in found {
        match ours.iter().find(|(own, _)| own == name) {
            Some((_, own)) => assert_eq!(own, value, "{of} {name}"),
            None => {
                assert!(others.contains(&name.as_str()), "{of} {name} = {value:#x}: spec does not know it")
            }
        }
    }
    let least = ours.len() - 2;
    assert!(found.len() >= least, "{of}: the header has {}, at least {least} are expected", found.len());
}

#[test]
fn numbers_are_those_of_the_kernel_s_header() {
    let Some(path) = header() else { return };
    let text = std::fs::read_to_string(&path).expect("readable");
    let opcodes = OPCODES.map(|(name, opcode)| (name, u64::from(opcode.0)));
    compare("opcode", &enumerators(&text, "dsa_opcode", "DSA_OPCODE_"), &opcodes, &[]);
    let statuses = STATUSES.map(|(name, status)| (name, u64::from(status.0)));
    compare("status", &enumerators(&text, "dsa_completion_status", "DSA_COMP_"), &statuses, &[]);
    let flags = FLAGS.map(|(name, flags)| (name, u64::from(flags.0)));
    compare("flag", &defines(&text, "IDXD_OP_FLAG_"), &flags, &ANALYTICS);
    let masks = defines(&text, "DSA_COMP_STATUS_");
    assert_eq!((masks["MASK"], masks["WRITE"]), (0x7f, u64::from(Status::FAULT_WAS_WRITE)));
}

const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include HEADER
#define AT(type, field) printf(#field " %zu\n", offsetof(struct type, field))
static void bytes(const char *name, const void *of, size_t size) {
    printf("%s ", name);
    for (size_t at = 0; at < size; at++) printf("%02x", ((const unsigned char *)of)[at]);
    printf("\n");
}
int main(void) {
    AT(dsa_hw_desc, completion_addr);
    AT(dsa_hw_desc, src_addr);
    AT(dsa_hw_desc, desc_list_addr);
    AT(dsa_hw_desc, pattern);
    AT(dsa_hw_desc, dst_addr);
    AT(dsa_hw_desc, src2_addr);
    AT(dsa_hw_desc, comp_pattern);
    AT(dsa_hw_desc, xfer_size);
    AT(dsa_hw_desc, desc_count);
    AT(dsa_hw_desc, int_handle);
    AT(dsa_hw_desc, rsvd1);
    AT(dsa_hw_desc, op_specific);
    AT(dsa_completion_record, status);
    AT(dsa_completion_record, result);
    AT(dsa_completion_record, bytes_completed);
    AT(dsa_completion_record, fault_addr);
    AT(dsa_completion_record, crc_val);
    struct dsa_hw_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.pasid = 0xabcde;
    desc.priv = 1;
    desc.flags = 0x123456;
    desc.opcode = 0x9a;
    desc.expected_res = 0x5a;
    desc.max_delta_size = 0x01020304;
    desc.expected_res_mask = 0x6b;
    bytes("compared", &desc, sizeof desc);
    memset(&desc, 0, sizeof desc);
    desc.crc_seed = 0x11223344;
    desc.seed_addr = 0x5566778899aabbcc;
    bytes("crc", &desc, sizeof desc);
    memset(&desc, 0, sizeof desc);
    desc.dest2 = 0x0102030405060708;
    bytes("dualcast", &desc, sizeof desc);
    struct dsa_completion_record record;
    memset(&record, 0, sizeof record);
    record.status = 0x83;
    record.result = 1;
    record.bytes_completed = 0x0a0b0c0d;
    record.fault_addr = 0x1112131415161718;
    record.crc_val = 0x2122232425262728;
    bytes("record", &record, sizeof record);
    return 0;
}
"#;

/// Runs the program with a C compiler; its lines by their first word. None: there is no compiler.
fn layouts(header: &Path) -> Option<BTreeMap<String, String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("uapi.c"), folder.path().join("uapi"));
    std::fs::write(&source, PROGRAM).expect("writable");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let define = format!("-DHEADER=\"{}\"", header.display());
    match Command::new(&compiler).arg(define).arg("-o").arg(&program).arg(&source).output() {
        Err(error) => {
            println!("not run: {compiler}: {error}");
            return None;
        }
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
    let output = Command::new(&program).output().expect("the program runs");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let pair = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned()));
    Some(text.lines().filter_map(pair).collect())
}

/// The bytes of a descriptor, written out field by field.
fn hex(descriptor: &Descriptor) -> String {
    let mut bytes = Vec::new();
    bytes.extend(descriptor.pasid.to_le_bytes());
    bytes.extend(descriptor.flags_opcode.to_le_bytes());
    for word in [descriptor.completion_address, descriptor.source, descriptor.target] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(descriptor.size.to_le_bytes());
    bytes.extend(descriptor.interrupt_handle.to_le_bytes());
    bytes.extend(descriptor.reserved.to_le_bytes());
    descriptor.operation.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn layouts_are_those_of_the_kernel_s_header() {
    let Some(found) = header().and_then(|path| layouts(&path)) else { return };
    for (name, offset) in [
        ("completion_addr", offset_of!(Descriptor, completion_address)),
        ("src_addr", offset_of!(Descriptor, source)),
        ("desc_list_addr", offset_of!(Descriptor, source)),
        ("pattern", offset_of!(Descriptor, source)),
        ("dst_addr", offset_of!(Descriptor, target)),
        ("src2_addr", offset_of!(Descriptor, target)),
        ("comp_pattern", offset_of!(Descriptor, target)),
        ("xfer_size", offset_of!(Descriptor, size)),
        ("desc_count", offset_of!(Descriptor, size)),
        ("int_handle", offset_of!(Descriptor, interrupt_handle)),
        ("rsvd1", offset_of!(Descriptor, reserved)),
        ("op_specific", offset_of!(Descriptor, operation)),
        ("status", offset_of!(Completion, status)),
        ("result", offset_of!(Completion, result)),
        ("bytes_completed", offset_of!(Completion, bytes_completed)),
        ("fault_addr", offset_of!(Completion, fault_address)),
        ("crc_val", offset_of!(Completion, value)),
    ] {
        assert_eq!(found[name], offset.to_string(), "{name}");
    }
    let mut compared = Descriptor::new(Opcode(0x9a), Flags(0x12_3456));
    compared.pasid = 0xa_bcde | 1 << 31;
    // `delta_addr` begins where `expected_res` does.
    compared.operation = [0x5a, 0x0102_0304, 0x6b];
    assert_eq!(found["compared"], hex(&compared));
    assert_eq!((compared.expected_result(), compared.expected_result_mask()), (0x5a, 0x6b));
    assert_eq!(compared.delta_bytes_max(), 0x0102_0304);
    let mut crc = Descriptor::new(Opcode::NOOP, Flags::NONE);
    crc.operation = [0x1122_3344, 0x5566_7788_99aa_bbcc, 0];
    assert_eq!(found["crc"], hex(&crc));
    assert_eq!((crc.crc_seed(), crc.crc_seed_address()), (0x1122_3344, 0x5566_7788_99aa_bbcc));
    let mut dualcast = Descriptor::new(Opcode::NOOP, Flags::NONE);
    dualcast.operation[0] = 0x0102_0304_0506_0708;
    assert_eq!((found["dualcast"].clone(), dualcast.target2()), (hex(&dualcast), 0x0102_0304_0506_0708));
    let record = Completion {
        status: Status::PAGE_FAULT.0 | Status::FAULT_WAS_WRITE,
        result: 1,
        bytes_completed: 0x0a0b_0c0d,
        fault_address: 0x1112_1314_1516_1718,
        value: 0x2122_2324_2526_2728,
        ..Completion::PENDING
    };
    let fields = [
        [record.status, record.result, record.fault_info, record.reserved].to_vec(),
        record.bytes_completed.to_le_bytes().to_vec(),
        record.fault_address.to_le_bytes().to_vec(),
        record.value.to_le_bytes().to_vec(),
        record.value2.to_le_bytes().to_vec(),
    ];
    let bytes: String = fields.concat().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found["record"], bytes);
}
