// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift ipc ping ADDRESS`: asks a server if it is ready, as the probe of a container or a service manager does.
//!
//! - **Exit** 0 ready · 1 it answers and is not ready, or does not answer in time · 3 no server is there
//! - **Order** connecting, `--wait` included, and the question each have a time limit, so the command ends also at a server that is stopped

use std::time::Duration;

use memlift::ground::config::Config;
use memlift::ipc::{CallOptions, Client, ClientOptions, Error, HealthState};
use serde_json::json;

use crate::failure::Failure;
use crate::print;

/// Arguments of `ipc ping`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of the server, or the path of its socket
    address: String,
    /// Seconds to wait for a server that is not there yet
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    wait: f64,
    /// Seconds in which the server has to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    timeout: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "give seconds, zero or more".to_owned())?;
    Ok(seconds)
}

/// Asks, and prints the answer.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let config = Config::load().map_err(|error| Failure::of(&error))?;
    let timeout = Some(Duration::from_secs_f64(args.timeout));
    let options = ClientOptions {
        timeout,
        server_wait: Some(Duration::from_secs_f64(args.wait)).filter(|wait| !wait.is_zero()),
        ..ClientOptions::from_config(&config)
    };
    let failed = |error: Error| match error {
        Error::ServerUnavailable { .. } => Failure::Unavailable(error.to_string()),
        error => Failure::Failed(error.to_string()),
    };
    let client = Client::connect(&args.address, options).map_err(failed)?;
    let health = client.ping(CallOptions::from(timeout)).map_err(failed)?;
    let state = health.state.name();
    if as_json {
        print::json(&json!({
            "address": args.address,
            "state": state,
            "sessions": health.sessions,
            "busy_handlers": health.busy_handlers,
            "queued": health.queued,
        }))?;
    } else {
        print::line(&format!(
            "{} is {state}: {} sessions, {} handlers at work, {} requests wait for one",
            args.address, health.sessions, health.busy_handlers, health.queued
        ))?;
    }
    match health.state {
        HealthState::Ready => Ok(()),
        HealthState::NotReady | HealthState::Draining => {
            Err(Failure::Failed(format!("the server at {} is {state}", args.address)))
        }
    }
}
