//! The client's end of the socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::CommandLine;
use super::socket::SocketPath;

/// Longest line that a node may answer: a definitions document.
const MAX_LINE_BYTES: u64 = 256 * 1024 * 1024;

/// What a node answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Names of columns, if it is a listing.
    pub(super) fields: Vec<String>,
    /// The listing.
    pub(super) rows: Vec<Vec<Value>>,
    /// An answer that is no listing.
    pub(super) value: Option<Value>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum AskError {
    /// The node is not there.
    Unreachable(String),
    /// It does not answer in time.
    Timeout,
    /// It refuses.
    Refused { kind: String, text: String },
}

/// Asks the node in a data directory.
///
/// # Errors
/// The node is not there, takes too long, or refuses.
pub(super) fn ask(data_dir: &Path, line: &CommandLine, timeout: Option<Duration>) -> Result<Answer, AskError> {
    let command = line.command.as_deref().unwrap_or_default();
    ask_for(data_dir, command, &line.arguments, &json!(line.options), timeout)
}

/// The same with a request of one's own.
///
/// # Errors
/// As [`ask`].
pub(super) fn ask_for(
    data_dir: &Path,
    command: &str,
    arguments: &[String],
    options: &Value,
    timeout: Option<Duration>,
) -> Result<Answer, AskError> {
    let unreachable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => AskError::Timeout,
        _ => AskError::Unreachable(error.to_string()),
    };
    let path = SocketPath::of(data_dir).map_err(unreachable)?;
    let mut stream = UnixStream::connect(path.socket()).map_err(unreachable)?;
    stream.set_read_timeout(timeout).map_err(unreachable)?;
    stream.set_write_timeout(timeout).map_err(unreachable)?;
    let request = json!({"command": command, "arguments": arguments, "options": options});
    stream.write_all(format!("{request}\n").as_bytes()).map_err(unreachable)?;
    let mut lines = BufReader::new(stream);
    let mut answer = Answer::default();
    let mut text = String::new();
    loop {
        text.clear();
        let read = (&mut lines).take(MAX_LINE_BYTES).read_line(&mut text).map_err(unreachable)?;
        if read == 0 {
            return Err(AskError::Unreachable(
                "the node closed the connection before the end of its answer".to_owned(),
            ));
        }
        let malformed = || AskError::Unreachable("the answer cannot be read".to_owned());
        let Value::Object(mut line) = serde_json::from_str(&text).map_err(|_| malformed())? else {
            return Err(malformed());
        };
        if let Some(Value::Array(row)) = line.remove("row") {
            answer.rows.push(row);
        } else if let Some(Value::Array(fields)) = line.remove("fields") {
            answer.fields = fields.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        } else if let Some(value) = line.remove("value") {
            answer.value = Some(value);
        } else if let Some(error) = line.remove("error") {
            let part = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            return Err(AskError::Refused { kind: part("kind"), text: part("text") });
        } else if line.contains_key("done") {
            return Ok(answer);
        } else {
            return Err(malformed());
        }
    }
}
