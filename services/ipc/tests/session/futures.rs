// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls as futures: on tokio, and on a loop of a few lines that shows what a runtime has to have.
//!
//! - **Goal** more calls than there is room for, dropped calls and a server that goes: every future ends, and no memory is lost
//! - **Method** real sockets and memory, one thread that polls

use super::{pair, pattern, server, small, unique};
use memlift_ipc::client::Readiness;
use memlift_ipc::{AsyncClient, CallOptions, Client, Error, Outgoing, ServerOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A runtime for one descriptor: asks the kernel when it is polled, and sleeps on the descriptor when nobody was woken.
#[derive(Clone)]
struct Lone(Arc<(OwnedFd, Mutex<Option<Waker>>)>);

impl Lone {
    fn is_readable(&self, waits: bool) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0.0, PollFlags::IN)];
        poll(&mut fds, if waits { None } else { Some(&now) }).unwrap() > 0
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Release);
            }
        }
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            while !woken.0.swap(false, Ordering::Acquire) {
                self.is_readable(true);
                if let Some(waker) = self.0.1.lock().unwrap().take() {
                    waker.wake();
                }
            }
        }
    }
}

impl Readiness for Lone {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.is_readable(false) {
            return Poll::Ready(Ok(()));
        }
        *self.0.1.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }
}

fn lone(client: Client) -> (Lone, AsyncClient<Lone>) {
    let mut own = None;
    let client = AsyncClient::new(client, |fd| {
        let lone = Lone(Arc::new((fd.try_clone_to_owned()?, Mutex::default())));
        own = Some(lone.clone());
        Ok(lone)
    });
    (own.unwrap(), client.unwrap())
}

/// All of them, in order.
async fn all<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

async fn echoes<R: Readiness>(client: &AsyncClient<R>, calls: usize) {
    let data: Vec<Vec<u8>> = (0..calls).map(|i| pattern(i * 131)).collect();
    let options = CallOptions { crc: true, ..CallOptions::default() };
    let futures = data.iter().map(|data| -> Pin<Box<dyn Future<Output = _> + '_>> {
        Box::pin(client.call("echo", data.as_slice(), options))
    });
    for (answer, sent) in all(futures.collect()).await.into_iter().zip(&data) {
        assert_eq!(&answer.unwrap().to_vec(), sent);
    }
}

#[test]
fn without_a_runtime_more_calls_than_there_is_room_for_all_end() {
    let name = unique("lone");
    let _server = server(&name, ServerOptions { outstanding_max: 4, ..ServerOptions::default() });
    let (runtime, client) = lone(Client::connect(&name, small()).unwrap());
    runtime.run(echoes(&client, 200));
    let stats = client.client().stats();
    assert_eq!((stats.outstanding, stats.request_used_bytes), (0, 0));
}

#[tokio::test]
async fn on_tokio_they_do_too() {
    let (_server, client) = pair("tokio");
    let client = AsyncClient::tokio(client).unwrap();
    echoes(&client, 300).await;
}

#[tokio::test]
async fn a_dropped_call_costs_the_others_nothing() {
    let name = unique("dropped");
    let _server = server(&name, ServerOptions { outstanding_max: 3, ..ServerOptions::default() });
    let client = AsyncClient::tokio(Client::connect(&name, small()).unwrap()).unwrap();
    for _ in 0..3 {
        // Two are sent and dropped, and so are those that still wait for room.
        let slow = (0..6).map(|_| -> Pin<Box<dyn Future<Output = _> + '_>> {
            Box::pin(client.call("sleep", b"30".as_slice(), None))
        });
        let late = tokio::time::timeout(Duration::from_millis(5), all(slow.collect())).await;
        assert!(late.is_err());
        echoes(&client, 10).await;
    }
    while client.client().stats().outstanding > 0 {
        client.call("length", Outgoing::none(), None).await.unwrap();
    }
    assert_eq!(client.client().stats().request_used_bytes, 0);
}

#[tokio::test]
async fn every_call_learns_that_the_server_is_gone() {
    let (server, client) = pair("gone");
    let client = AsyncClient::tokio(client).unwrap();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        server.stop();
    });
    // More than there is room for.
    let slow = (0..100).map(|_| -> Pin<Box<dyn Future<Output = _> + '_>> {
        Box::pin(client.call("sleep", b"100".as_slice(), None))
    });
    for answer in all(slow.collect()).await {
        assert!(matches!(answer, Ok(_) | Err(Error::PeerDied { .. })), "{answer:?}");
    }
    stopper.join().unwrap();
    assert!(client.call("echo", b"x".as_slice(), None).await.is_err());
}

#[test]
fn records_and_arrays_keep_their_types() {
    #[derive(Clone, Copy, PartialEq, Debug, memlift_ipc::bytemuck::Pod, memlift_ipc::bytemuck::Zeroable)]
    #[repr(C)]
    struct Point {
        x: f32,
        y: f32,
    }
    let (server, client) = pair("typed");
    server.register_typed("mirror", |point: Point| Ok(Point { x: point.y, y: point.x })).unwrap();
    let mirrored: Point = client.call_typed("mirror", &Point { x: 1.0, y: 2.0 }, None).unwrap();
    assert_eq!(mirrored, Point { x: 2.0, y: 1.0 });
    let error = client.call_typed::<_, Point>("mirror", &[0u8; 7], None).unwrap_err().to_string();
    assert!(error.contains("Point was wanted") && error.contains("7 bytes came"), "{error}");
    let error = client.call_typed::<_, u64>("length", &1u32, None).unwrap_err();
    assert!(matches!(error, Error::WrongType { bytes: 1, .. }), "{error}");
    let numbers = [1.5f64, -2.0, 3.25, 0.0, 5.0, 6.0];
    let answer = client.call("echo", Outgoing::array(&numbers, &[2, 3]).unwrap(), None).unwrap();
    assert_eq!(answer.as_tensor().unwrap().shape(), [2, 3]);
    assert_eq!(answer.to_array::<f64>().unwrap(), numbers);
    assert!(matches!(answer.to_array::<f32>(), Err(Error::WrongType { .. })));
    assert!(Outgoing::array(&numbers, &[7]).is_err());
    let answer = client.call("echo", Outgoing::records(&[7u32, 8, 9]), None).unwrap();
    assert_eq!(answer.to_records::<u32>().unwrap(), [7, 8, 9]);
    assert!(answer.to_records::<u64>().is_err());
}
