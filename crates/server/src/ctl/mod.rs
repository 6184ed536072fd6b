//! `warrenmq ctl`, which is `rabbitmqctl`: commands for operators over a socket in the node's data directory.
//!
//! The client ([`run`]) reads the command line ([`arguments`]), looks the command up ([`commands`]), asks the node over the socket
//! ([`client`]) and prints the answer as `rabbitmqctl` would ([`mod@format`], [`output`]), with its exit codes. The node's side ([`server`]) reads one
//! request per connection and answers with what `broker::admin` says ([`answers`]). Who may open the socket may do everything: it belongs to the node's
//! user and nobody else (mode 0600).
//!
//! Both sides speak lines of JSON. A request is one object: `command`, `arguments` (a list of texts), `options` (an object of texts). The
//! answer is any number of lines, of which the last has `done` or `error`:
//!
//! | line | meaning |
//! |---|---|
//! | `{"fields":[..]}` | the names of the columns that follow |
//! | `{"row":[..]}` | a row of a listing |
//! | `{"value":..}` | an answer that is no listing |
//! | `{"done":true}` | that was all |
//! | `{"error":{"kind":..,"text":..}}` | it was not done |

mod answers;
mod arguments;
mod client;
mod commands;
mod exit;
mod format;
mod output;
mod server;
mod socket;
mod status;

use std::process::ExitCode;

pub(crate) use server::{Control, NodeFacts};

/// The names under which the binary is this client, whatever the first argument is.
const NAMES: [&str; 2] = ["rabbitmqctl", "rabbitmq-diagnostics"];

/// The name of the program, if that makes it this client.
pub(crate) fn called_as(program: &str) -> Option<&'static str> {
    let name = std::path::Path::new(program).file_name()?.to_str()?;
    NAMES.into_iter().find(|known| *known == name)
}

/// Runs a command. `program`: how it was called, for messages.
pub(crate) fn run(program: &str, arguments: &[String]) -> ExitCode {
    output::run(program, arguments)
}
