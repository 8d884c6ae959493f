// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Typed calls: plain records and arrays of numbers in, plain records and arrays out, without a format in between.
//!
//! - **Flow** `&T` of [`bytemuck::NoUninit`] ─▶ bytes, copied once ─▶ the other side copies them out as its own `T`, of which any bits
//!   are one ([`bytemuck::AnyBitPattern`])
//! - **Limits** both sides must mean the same by `T`: the same release of the same program, or `#[repr(C)]`. Only the length is checked.
//! - **Owner** what is received is a copy: a `&T` to memory that the peer can write would change while it is looked at

use crate::client::Client;
use crate::error::Error;
use crate::message::{ElementType, Tensor};
use crate::options::CallOptions;
use crate::payload::{Outgoing, Payload};
use crate::server::{Reply, Server};
use bytemuck::{AnyBitPattern, NoUninit, Pod};

/// A number that arrays are made of.
pub trait Element: Pod {
    /// Element type of this number in messages.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($type:ty = $kind:literal),+) => {
        $(impl Element for $type {
            const TYPE: ElementType = ElementType { kind: $kind, bytes: size_of::<$type>() as u8 };
        })+
    };
}

elements!(u8 = b'u', u16 = b'u', u32 = b'u', u64 = b'u', i8 = b'i', i16 = b'i', i32 = b'i', i64 = b'i');
elements!(f32 = b'f', f64 = b'f');

impl<'a> Outgoing<'a> {
    /// Records, as bytes.
    pub fn records<T: NoUninit>(records: &'a [T]) -> Outgoing<'a> {
        Outgoing::from(bytemuck::cast_slice::<T, u8>(records))
    }

    /// An array of `shape`, C-contiguous in `data`.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedType`] if there are not as many numbers as the shape says.
    pub fn array<T: Element>(data: &'a [T], shape: &[u64]) -> Result<Outgoing<'a>, Error> {
        Outgoing::tensor(Tensor::new(T::TYPE, shape)?, bytemuck::cast_slice(data))
    }
}

impl Payload {
    /// A copy of it as records.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is not a whole number of them.
    pub fn to_records<T: AnyBitPattern + NoUninit>(&self) -> Result<Vec<T>, Error> {
        let size = size_of::<T>();
        if size == 0 || !self.bytes().is_multiple_of(size as u64) {
            return Err(self.is_not(std::any::type_name::<[T]>()));
        }
        let mut records = vec![T::zeroed(); (self.bytes() / size as u64) as usize];
        self.read_into(bytemuck::cast_slice_mut(&mut records));
        Ok(records)
    }

    /// A copy of it as one record.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it has another length.
    pub fn to_record<T: AnyBitPattern + NoUninit>(&self) -> Result<T, Error> {
        let mut record = [T::zeroed()];
        if self.bytes() != size_of::<T>() as u64 {
            return Err(self.is_not(std::any::type_name::<T>()));
        }
        self.read_into(bytemuck::cast_slice_mut(&mut record));
        let [record] = record;
        Ok(record)
    }

    /// A copy of an array's numbers; its shape is [`as_tensor`](Payload::as_tensor)'s.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is no array of them.
    pub fn to_array<T: Element>(&self) -> Result<Vec<T>, Error> {
        match self.as_tensor() {
            Some(tensor) if tensor.element() == T::TYPE => self.to_records(),
            _ => Err(self.is_not(std::any::type_name::<[T]>())),
        }
    }

    fn is_not(&self, wanted: &'static str) -> Error {
        Error::WrongType { wanted, got: format!("{:?}", self.shape()), bytes: self.bytes() }
    }
}

impl Client {
    /// Calls `operation` with one record and waits for another. Name the reply's type: `call_typed::<_, Reply>`.
    ///
    /// # Errors
    ///
    /// As [`call`](Client::call), and [`Error::WrongType`] for an answer of another length.
    ///
    /// ```no_run
    /// # use memlift_ipc::{Client, ClientOptions, bytemuck};
    /// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    /// #[repr(C)]
    /// struct Point { x: f32, y: f32 }
    ///
    /// # let client = Client::connect("geometry", ClientOptions::default())?;
    /// let mirrored: Point = client.call_typed("mirror", &Point { x: 1.0, y: 2.0 }, None)?;
    /// # Ok::<(), memlift_ipc::Error>(())
    /// ```
    pub fn call_typed<Q: NoUninit, A: AnyBitPattern + NoUninit>(
        &self,
        operation: &str,
        request: &Q,
        options: impl Into<CallOptions>,
    ) -> Result<A, Error> {
        self.call(operation, Outgoing::records(std::slice::from_ref(request)), options)?.to_record()
    }
}

impl Server {
    /// Names an operation that takes one record and gives another. A request of another length fails before the handler sees it.
    ///
    /// # Errors
    ///
    /// [`Error::OperationExists`].
    pub fn register_typed<Q: AnyBitPattern + NoUninit, A: NoUninit>(
        &self,
        name: &str,
        handler: impl Fn(Q) -> Result<A, String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.register(name, move |request| {
            let request = request.to_record::<Q>().map_err(|error| error.to_string())?;
            Ok(Reply::bytes(bytemuck::bytes_of(&handler(request)?)))
        })
    }
}
