//! The node's end of the socket.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use broker::Broker;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::answers::{Answer, Refusal, Request, answer};
use super::socket::SocketPath;

/// Clients at a time; more wait to be accepted.
const MAX_CLIENTS: usize = 16;
/// Longest request in bytes: definitions as a JSON text, in which every quote takes two bytes.
const MAX_REQUEST_BYTES: u64 = 2 * broker::admin::MAX_DEFINITIONS_BYTES as u64 + 64 * 1024;
/// How long a client may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What the broker itself does not know of its node.
#[derive(Debug)]
pub(crate) struct NodeFacts {
    /// Where it listens for AMQP.
    pub(crate) listeners: Vec<String>,
    /// The files that its configuration came from.
    pub(crate) config_files: Vec<String>,
    /// The settings in force, without secrets.
    pub(crate) environment: Value,
}

impl NodeFacts {
    /// Asks the node to stop, as a signal would.
    pub(super) fn stop(&self) {
        let this = rustix::process::getpid();
        if let Err(error) = rustix::process::kill_process(this, rustix::process::Signal::TERM) {
            tracing::error!(%error, "cannot ask the node to stop");
        }
    }
}

/// The listening socket. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: SocketPath,
}

impl Control {
    /// Listens in a data directory, which nobody else uses: a socket that is there is of a node that is gone.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn bind(data_dir: &Path) -> io::Result<Self> {
        let path = SocketPath::of(data_dir)?;
        // Made where nobody else can reach it, and seen only when its mode is right.
        let directory = path.unfinished();
        let unfinished: PathBuf = directory.join("s");
        let _ = std::fs::remove_file(&unfinished);
        let _ = std::fs::remove_dir(&directory);
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let listener = UnixListener::bind(&unfinished)?;
        std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&unfinished, path.socket())?;
        std::fs::remove_dir(&directory)?;
        Ok(Self { listener, path })
    }

    /// Answers clients for as long as the node runs.
    pub(crate) async fn serve(self, broker: Arc<Broker>, facts: NodeFacts) {
        let (facts, places) = (Arc::new(facts), Arc::new(Semaphore::new(MAX_CLIENTS)));
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (broker, facts) = (Arc::clone(&broker), Arc::clone(&facts));
                    tokio::spawn(async move {
                        if let Err(error) = client(stream, &broker, &facts).await {
                            tracing::debug!(%error, "a client of the control socket went away");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "cannot accept a client of the control socket");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path.socket());
    }
}

async fn client(mut stream: UnixStream, broker: &Arc<Broker>, facts: &NodeFacts) -> io::Result<()> {
    let (reader, writer) = stream.split();
    let mut text = Vec::new();
    let mut limited = BufReader::new(reader).take(MAX_REQUEST_BYTES);
    timeout(PATIENCE, limited.read_until(b'\n', &mut text)).await??;
    let answered = match parse(&text) {
        Ok(request) => {
            // Arguments may be passwords.
            tracing::info!(command = request.command, "asked over the control socket");
            answer(broker, facts, &request).await
        }
        Err(refusal) => Err(refusal),
    };
    drop(text);
    timeout(PATIENCE, write(BufWriter::new(writer), answered)).await?
}

fn parse(text: &[u8]) -> Result<Request, Refusal> {
    let malformed = |what: &str| Refusal { kind: "usage", text: format!("the request cannot be read: {what}") };
    let Some(text) = text.strip_suffix(b"\n") else { return Err(malformed("it is too long or ends early")) };
    let value: Value = serde_json::from_slice(text).map_err(|error| malformed(&error.to_string()))?;
    let Value::Object(mut fields) = value else { return Err(malformed("it is no object")) };
    let Some(Value::String(command)) = fields.remove("command") else { return Err(malformed("no command")) };
    let arguments = match fields.remove("arguments") {
        Some(Value::Array(words)) => words.into_iter().map(|word| match word {
            Value::String(word) => Ok(word),
            _ => Err(malformed("an argument is no text")),
        }),
        _ => return Err(malformed("no arguments")),
    };
    let arguments = arguments.collect::<Result<_, _>>()?;
    let Some(Value::Object(options)) = fields.remove("options") else { return Err(malformed("no options")) };
    Ok(Request { command, arguments, options })
}

async fn write(
    mut out: BufWriter<impl tokio::io::AsyncWrite + Unpin>,
    answered: Result<Answer, Refusal>,
) -> io::Result<()> {
    let mut last = json!({"done": true});
    match answered {
        Ok(Answer::Done) => {}
        Ok(Answer::Value(value)) => line(&mut out, &json!({"value": value})).await?,
        Ok(Answer::Listing(fields, rows)) => {
            line(&mut out, &json!({"fields": fields})).await?;
            for mut row in rows {
                let cells: Vec<Value> = fields.iter().map(|field| row.remove(field).unwrap_or(Value::Null)).collect();
                line(&mut out, &json!({"row": cells})).await?;
            }
        }
        Err(Refusal { kind, text }) => last = json!({"error": {"kind": kind, "text": text}}),
    }
    line(&mut out, &last).await?;
    out.flush().await
}

async fn line(out: &mut BufWriter<impl tokio::io::AsyncWrite + Unpin>, value: &Value) -> io::Result<()> {
    out.write_all(format!("{value}\n").as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_or_refused() {
        let request = parse(b"{\"command\":\"x\",\"arguments\":[\"a\"],\"options\":{}}\n").expect("valid");
        assert_eq!((request.command.as_str(), request.arguments), ("x", vec!["a".to_owned()]));
        for bad in [
            &b""[..],
            b"\n",
            b"{}\n",
            b"[]\n",
            b"{\"command\":\"x\",\"arguments\":[1],\"options\":{}}\n",
            b"{\"command\":\"x\",\"arguments\":[],\"options\":[]}\n",
            b"{\"command\":\"x\",\"arguments\":[],\"options\":{}}",
            b"\xff\n",
        ] {
            assert_eq!(parse(bad).expect_err("refused").kind, "usage");
        }
    }

    #[tokio::test]
    async fn the_socket_is_its_owners_alone_and_goes_with_the_listener() {
        let directory = tempfile::tempdir().expect("a directory");
        // Longer than a socket's path may be.
        let long = directory.path().join("d".repeat(150));
        std::fs::create_dir(&long).expect("a directory");
        for data_dir in [directory.path(), &long] {
            let control = Control::bind(data_dir).expect("bound");
            let socket = data_dir.join("ctl.sock");
            assert_eq!(std::fs::metadata(&socket).expect("it is there").permissions().mode() & 0o777, 0o600);
            let path = SocketPath::of(data_dir).expect("a path");
            UnixStream::connect(path.socket()).await.expect("it listens");
            drop(control);
            assert!(!socket.exists());
        }
    }
}
