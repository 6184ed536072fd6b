//! What the end-to-end tests share: a running broker ([`Node`]), a raw AMQP client ([`Wire`]) that shows every frame
//! and can send wrong ones, and short constructors of AMQP methods ([`methods`]).
//!
//! The tests are in `tests/tests/`, one file per chapter of what a client sees. They drive the real binary over TCP and
//! use none of the broker's code: the raw client stands on `amq-protocol`, so that a codec bug cannot hide on both sides.
//!
//! Everything here panics with a message rather than return errors: a test has nothing better to do with them, and the
//! panic names the line of the test ([`track_caller`](https://doc.rust-lang.org/reference/attributes/codegen.html)).

#![forbid(unsafe_code)]

pub mod bytes;
pub mod disk;
pub mod limits;
pub mod load;
pub mod methods;
pub mod node;
pub mod power;
pub mod random;
pub mod wire;

pub use bytes::Options;
pub use methods::With;
pub use node::{Node, Refusal, Setup};
pub use wire::Wire;

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen. Generous: it is only waited out by a failing test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again every 10 ms until `condition` holds, and fails the test after [`PATIENCE`].
///
/// For effects that no frame announces, such as another connection's queue being gone.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
