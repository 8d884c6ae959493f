// SPDX-License-Identifier: Apache-2.0 OR MIT
//! iceoryx2's request-response as a side of a row: 64 bytes there, 8 bytes back, both sides poll, every word written and read.
//!
//! - **Flow** started without words: a client that starts itself as `serve NAME`, says `{"about"}`, then takes `run SEED COUNT` ─▶
//!   `{"seconds", "cpu_s", "checksum"}` from stdin, as lab/bench/src/ipc/echo.rs does for memlift
//! - **Layout** a request is eight words, its answer their exclusive or; a request that begins with [`CPU`] asks for the server's CPU time, ns,
//!   one that begins with [`END`] ends it, so that it takes its files along
//! - **Owner** the server dies with its client (PR_SET_PDEATHSIG), the client ends with its stdin

use std::error::Error;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Instant;

use iceoryx2::port::client::Client;
use iceoryx2::prelude::*;

type Words = [u64; 8];
const CPU: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

type Port = Client<ipc::Service, Words, (), u64, ()>;

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let node =
        NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>()?;
    let service =
        node.service_builder(&name.try_into()?).request_response::<Words, u64>().open_or_create()?;
    let server = service.server_builder().create()?;
    loop {
        let Some(request) = server.receive()? else {
            std::hint::spin_loop();
            continue;
        };
        let answer = match request[0] {
            CPU => cpu_ns(),
            _ => request.iter().fold(0, |sum, word| sum ^ word),
        };
        request.loan_uninit()?.write_payload(answer).send()?;
        if request[0] == END {
            return Ok(());
        }
    }
}

fn call(port: &Port, words: Words) -> Result<u64, Box<dyn Error>> {
    let pending = port.loan_uninit()?.write_payload(words).send()?;
    loop {
        if let Some(answer) = pending.receive()? {
            return Ok(*answer);
        }
        std::hint::spin_loop();
    }
}

/// One step of splitmix64, below [`END`].
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)) & !(1 << 63)
}

fn client(server: &mut Child, name: &str) -> Result<(), Box<dyn Error>> {
    let node =
        NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>()?;
    let service =
        node.service_builder(&name.try_into()?).request_response::<Words, u64>().open_or_create()?;
    let port = service.client_builder().create()?;
    while service.dynamic_config().number_of_servers() == 0 {
        if let Some(status) = server.try_wait()? {
            return Err(format!("the server ended: {status}").into());
        }
        std::thread::yield_now();
    }
    let mut out = std::io::stdout().lock();
    let about = format!("iceoryx2 {}, request-response of 64 and 8 bytes, both sides poll", "0.10.0");
    writeln!(out, "{{\"about\": \"{about}\"}}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (Some("run"), Some(seed), Some(count)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("what is `{line}`?").into());
        };
        let (mut state, count) = (seed.parse::<u64>()?, count.parse::<u64>()?);
        let mut checksum = 0u64;
        let (theirs, ours) = (call(&port, [CPU; 8])?, cpu_ns());
        let start = Instant::now();
        for _ in 0..count {
            let words: Words = std::array::from_fn(|_| draw(&mut state));
            let answer = call(&port, words)?;
            if answer != words.iter().fold(0, |sum, word| sum ^ word) {
                return Err("the server read other bytes than were sent".into());
            }
            checksum = checksum.rotate_left(1) ^ answer;
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu_s = (cpu_ns() - ours + call(&port, [CPU; 8])? - theirs) as f64 * 1e-9;
        writeln!(out, "{{\"seconds\": {seconds}, \"cpu_s\": {cpu_s}, \"checksum\": \"{checksum:016x}\"}}")?;
        out.flush()?;
    }
    call(&port, [END; 8])?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    set_log_level(LogLevel::Error);
    let words: Vec<String> = std::env::args().collect();
    if let [_, verb, name] = &words[..]
        && verb == "serve"
    {
        return serve(name);
    }
    let name = format!("memlift-bench-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", &name]);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut server = command.spawn()?;
    let done = client(&mut server, &name);
    if done.is_err() {
        server.kill()?;
    }
    server.wait()?;
    done
}
