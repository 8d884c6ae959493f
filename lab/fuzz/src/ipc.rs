// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Input from a peer in a ring: a message's kind and shape, and the text of an address.
//!
//! - **Order** a shape that is taken has exactly the payload's bytes, and describes itself again
//! - **Layout** messages of 128 bytes; what is left is an address

use crate::Input;
use memlift_ipc::message::{Kind, MESSAGE_BYTES, Message, Shape};
use memlift_ipc::{Address, ElementType, Tensor};

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if let Ok(text) = std::str::from_utf8(&data[..data.len().min(200)]) {
        let _ = Address::parse(text, Some(std::path::Path::new("/run/memlift")));
    }
    while !input.is_empty() {
        let mut bytes = [0; MESSAGE_BYTES];
        let piece = input.take(MESSAGE_BYTES);
        bytes[..piece.len()].copy_from_slice(piece);
        let message: Message = bytemuck::pod_read_unaligned(&bytes);
        let kind = message.kind();
        assert_eq!(kind.is_ok(), (1..=10).contains(&message.kind));
        let Ok(shape) = message.shape() else { continue };
        if let Shape::Tensor(tensor) = &shape {
            assert_eq!(tensor.bytes(), message.bytes);
            assert!(tensor.shape().len() <= 8 && tensor.element().is_known());
        }
        let mut again = Message::new(Kind::Call, message.job);
        again.describe(&shape, message.segment, message.offset, message.bytes);
        assert_eq!(again.shape().expect("just described"), shape);
    }
}

/// A message with a tensor, one with bytes, one with nothing.
pub fn seeds() -> Vec<Vec<u8>> {
    let tensor = Tensor::new(ElementType::F32, &[20, 30]).expect("an array that there is");
    let mut message = Message::new(Kind::Call, 7);
    message.describe(&Shape::Tensor(tensor), 1, 256, tensor.bytes());
    let mut plain = Message::new(Kind::Reply, 8);
    plain.describe(&Shape::Bytes, 0, 64, 4096);
    let none = Message::new(Kind::Release, 9);
    let all = [message, plain, none].map(|message| bytemuck::bytes_of(&message).to_vec());
    [&all[..], &[all.concat(), b"unix:/run/some.sock".to_vec(), b"name".to_vec()]].concat()
}
