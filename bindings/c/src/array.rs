// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrays in calls and answers: the part "arrays" of `memlift_ipc.h`.
//!
//! - **Flow** a checked `memlift_array` becomes a call or an answer; an answer or a request becomes a `memlift_array`.
//! - **Layout** elements in C order, of types that every side of a session knows: numpy's type letters with a size.
//! - **Not here** copies of the elements: they are used in place.

use std::ffi::{c_char, c_int, c_void};

use memlift::ipc::message::Shape;
use memlift::ipc::{Client, ElementType, Job, Outgoing, Payload, Tensor};

use crate::fault::{Fault, run, write_boxed};
use crate::ipc::{COptions, checked_options};
use crate::serve::{PendingRequest, answered, take_request};
use crate::walk::{borrow_object, bytes, text, write_result};

const DIMENSIONS_MAX: usize = 8;

/// The C type `memlift_array` of `memlift_ipc.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CArray {
    data: *const c_void,
    bytes: u64,
    kind: u32,
    element_bytes: u32,
    dimensions: u32,
    reserved: u32,
    shape: [u64; DIMENSIONS_MAX],
}

impl CArray {
    /// Describes a payload that lies at `data`.
    fn of(shape: &Shape, data: *const u8, bytes: u64) -> CArray {
        let mut array = CArray {
            data: data.cast(),
            bytes,
            kind: 0,
            element_bytes: 1,
            dimensions: 1,
            reserved: 0,
            shape: [0; DIMENSIONS_MAX],
        };
        array.shape[0] = bytes;
        match shape {
            Shape::None | Shape::Bytes => {}
            Shape::Value => array.kind = u32::from(b'v'),
            Shape::Tensor(tensor) => {
                array.kind = tensor.element().kind.into();
                array.element_bytes = tensor.element().bytes.into();
                array.dimensions = tensor.shape().len() as u32;
                array.shape = [0; DIMENSIONS_MAX];
                array.shape[..tensor.shape().len()].copy_from_slice(tensor.shape());
            }
        }
        array
    }
}

impl CArray {
    /// Describes elements of a numpy type; returns `None` if the shape has too many dimensions, or does not have `bytes` bytes
    /// in all.
    pub(crate) fn described(
        data: *const u8,
        bytes: u64,
        kind: u8,
        element_bytes: u32,
        shape: &[u64],
    ) -> Option<CArray> {
        let elements = shape.iter().try_fold(1u64, |product, count| product.checked_mul(*count))?;
        if shape.len() > DIMENSIONS_MAX || elements.checked_mul(element_bytes.into())? != bytes {
            return None;
        }
        let mut array = CArray {
            data: data.cast(),
            bytes,
            kind: kind.into(),
            element_bytes,
            dimensions: shape.len() as u32,
            reserved: 0,
            shape: [0; DIMENSIONS_MAX],
        };
        array.shape[..shape.len()].copy_from_slice(shape);
        Some(array)
    }
}

/// Describes the caller's array for the service.
fn outgoing<'a>(array: *const CArray) -> Result<Outgoing<'a>, Fault> {
    let array = borrow_object(array, "array")?;
    let (Ok(kind), Ok(element_bytes)) = (u8::try_from(array.kind), u8::try_from(array.element_bytes)) else {
        return Err(Fault::argument("an array's kind is one of the letters b i u f c"));
    };
    if array.reserved != 0 {
        return Err(Fault::argument("what is reserved in an array is not 0"));
    }
    let shape = array.shape.get(..array.dimensions as usize);
    let shape = shape.ok_or_else(|| Fault::argument("an array has at most 8 dimensions"))?;
    let tensor = Tensor::new(ElementType { kind, bytes: element_bytes }, shape)?;
    if array.bytes != 0 && array.bytes != tensor.bytes() {
        return Err(Fault::argument(&format!(
            "an array of {} bytes that says {}: leave `bytes` 0, or set it right",
            tensor.bytes(),
            array.bytes
        )));
    }
    let count =
        usize::try_from(tensor.bytes()).map_err(|_| Fault::argument("an array is longer than memory"))?;
    let data = if count == 0 { &[] } else { bytes(array.data, count, "data")? };
    Ok(Outgoing::tensor(tensor, data)?)
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_call_array(
    client: *const Client,
    operation: *const c_char,
    array: *const CArray,
    options: *const COptions,
    answer: *mut *mut Payload,
) -> c_int {
    run(|| {
        let (operation, options) = (text(operation, "operation")?, checked_options(options)?);
        let payload = borrow_object(client, "client")?.call(operation, outgoing(array)?, options)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(answer, payload, "answer") }
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// Each pointer is null, comes from this library, or points to enough room, as `memlift_ipc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_call_array_async(
    client: *const Client,
    operation: *const c_char,
    array: *const CArray,
    options: *const COptions,
    job: *mut *mut Job,
) -> c_int {
    run(|| {
        let (operation, options) = (text(operation, "operation")?, checked_options(options)?);
        let sent = borrow_object(client, "client")?.call_async(operation, outgoing(array)?, options)?;
        // SAFETY: the caller passes room for a pointer.
        unsafe { write_boxed(job, sent, "job") }
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `array` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_answer_array(answer: *const Payload, array: *mut CArray) -> c_int {
    run(|| {
        let answer = borrow_object(answer, "answer")?;
        write_result(array, CArray::of(answer.shape(), answer.as_ptr(), answer.bytes()), "array")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `array` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_request_array(request: *const PendingRequest, array: *mut CArray) -> c_int {
    run(|| {
        let request = borrow_object(request, "request")?.request();
        write_result(array, CArray::of(request.shape(), request.as_ptr(), request.bytes()), "array")
    })
}

/// See `memlift_ipc.h`.
///
/// # Safety
///
/// `request` was passed to a handler; it is not used afterwards, unless the array is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlift_request_answer_array(
    request: *mut PendingRequest,
    array: *const CArray,
) -> c_int {
    run(|| {
        let data = outgoing(array)?;
        // SAFETY: `request` is null, or was passed to a handler and not ended; the caller gives it up.
        answered(unsafe { take_request(request) }?, &data);
        Ok(())
    })
}
