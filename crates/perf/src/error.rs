//! What ends a connection of the load tool.

use std::io;

/// Why a connection ended, or never came to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be reached, or the socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The broker closed the socket without a word.
    #[error("the broker closed the connection")]
    Hangup,
    /// `connection.close` or `channel.close` from the broker.
    #[error("{code} {text}")]
    Refused {
        /// The reply code.
        code: u16,
        /// The reply text.
        text: String,
    },
    /// The broker sent what has no place in the protocol, or not where it stood.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The broker did not answer in time.
    #[error("no answer within {0} s")]
    Timeout(u64),
    /// The broker cancelled a consumer: its queue is gone.
    #[error("the broker cancelled a consumer")]
    Cancelled,
    /// A task of the tool itself ended before its time.
    #[error("{0}")]
    Internal(&'static str),
}
