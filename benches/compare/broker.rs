//! Brokers to compare: which are there, and how one is started on free ports with directories of its own, killed and
//! started again on the same data.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a broker may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a broker may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Where the Debian package has what runs RabbitMQ without changing the user first.
const RABBIT_LIB: &str = "/usr/lib/rabbitmq";

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Warren,
    Rabbit,
    Lavin,
}

/// A broker that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) version: String,
    binary: PathBuf,
}

/// A broker that runs. Ended when dropped, with its directories.
pub(crate) struct Running {
    installed: Installed,
    directory: TempDir,
    pub(crate) port: u16,
    config: String,
    child: Child,
    /// RabbitMQ's name server, our own, so that none stays behind.
    name_server: Option<(Child, u16)>,
}

/// Brokers that are there, WarrenMQ first; and a line on each that is not.
pub(crate) fn find(warren: &Path) -> (Vec<Installed>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let version = |binary: &Path| {
        let output = Command::new(binary).arg("--version").stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
    };
    match version(warren) {
        Some(version) => {
            found.push(Installed { kind: Kind::Warren, name: "WarrenMQ", version, binary: warren.to_owned() });
        }
        None => missing.push(format!("WarrenMQ: {} does not run", warren.display())),
    }
    match rabbit_version() {
        Some(version) => {
            let binary = Path::new(RABBIT_LIB).join("bin/rabbitmq-server");
            found.push(Installed { kind: Kind::Rabbit, name: "RabbitMQ", version, binary });
        }
        None => missing.push("RabbitMQ: the package rabbitmq-server is not installed".to_owned()),
    }
    match version(Path::new("lavinmq")) {
        Some(version) => {
            found.push(Installed { kind: Kind::Lavin, name: "LavinMQ", version, binary: "lavinmq".into() });
        }
        None => missing.push("LavinMQ: no lavinmq on PATH".to_owned()),
    }
    (found, missing)
}

/// From the name of the directory that the package installs.
fn rabbit_version() -> Option<String> {
    if !Path::new(RABBIT_LIB).join("bin/rabbitmq-server").exists() {
        return None;
    }
    fs::read_dir(Path::new(RABBIT_LIB).join("lib")).ok()?.flatten().find_map(|entry| {
        entry.file_name().to_str()?.strip_prefix("rabbitmq_server-").map(|version| format!("rabbitmq {version}"))
    })
}

impl Installed {
    /// Starts it under `parent` and waits until it accepts connections. `config` is for WarrenMQ alone.
    pub(crate) fn start(&self, parent: &Path, config: &str) -> io::Result<Running> {
        let directory = tempfile::Builder::new().prefix("warrenmq-compare-").tempdir_in(parent)?;
        let port = free_port()?;
        let name_server = match self.kind {
            Kind::Rabbit => {
                let port = free_port()?;
                Some((Command::new("epmd").args(["-port", &port.to_string()]).stdin(Stdio::null()).spawn()?, port))
            }
            Kind::Warren | Kind::Lavin => None,
        };
        let mut running = Running {
            installed: self.clone(),
            child: Command::new("true").spawn()?,
            directory,
            port,
            config: config.to_owned(),
            name_server,
        };
        running.launch()?;
        running.wait_until_ready()?;
        Ok(running)
    }
}

impl Running {
    /// Where all files of the broker are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.installed.kind
    }

    /// The process that does the work.
    pub(crate) fn pid(&self) -> u32 {
        match self.installed.kind {
            Kind::Rabbit => descendant(self.child.id(), "beam.smp").unwrap_or(self.child.id()),
            Kind::Warren | Kind::Lavin => self.child.id(),
        }
    }

    /// Starts the process, without waiting.
    pub(crate) fn launch(&mut self) -> io::Result<()> {
        let _ = self.child.wait();
        let dir = self.directory.path();
        let log = fs::File::options().create(true).append(true).open(dir.join("output.log"))?;
        let mut command = Command::new(&self.installed.binary);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let port = self.port.to_string();
        match self.installed.kind {
            Kind::Warren => {
                let config = dir.join("warrenmq.conf");
                fs::write(&config, &self.config)?;
                command.args(["server", "--listen", &format!("127.0.0.1:{port}"), "--config"]).arg(config);
                command.arg("--data-dir").arg(dir.join("data"));
            }
            Kind::Rabbit => {
                let names = self.name_server.as_ref().map_or(0, |(_, port)| *port);
                fs::write(dir.join("enabled_plugins"), "[].\n")?;
                fs::write(dir.join("rabbitmq.conf"), "log.console.level = warning\n")?;
                command
                    .env("HOME", dir)
                    .env("ERL_EPMD_PORT", names.to_string())
                    .env("RABBITMQ_NODENAME", format!("compare{port}@localhost"))
                    .env("RABBITMQ_NODE_PORT", &port)
                    .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
                    .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
                    .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
                    .env("RABBITMQ_LOG_BASE", dir.join("log"))
                    .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
                    .env("RABBITMQ_CONF_ENV_FILE", dir.join("none"))
                    .env("RABBITMQ_PID_FILE", dir.join("pid"))
                    .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"));
            }
            Kind::Lavin => {
                command.arg("--data-dir").arg(dir.join("data")).args(["--bind", "127.0.0.1", "--amqp-port", &port]);
                command.args(["--http-port", &free_port()?.to_string()]);
            }
        }
        self.child = command.spawn()?;
        Ok(())
    }

    /// Waits until connections are accepted.
    pub(crate) fn wait_until_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("{} ended: {status}\n{}", self.installed.name, self.log_tail())));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} does not listen\n{}", self.installed.name, self.log_tail())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it as a power failure would: at once, without a word.
    pub(crate) fn kill(&mut self) {
        let pid = self.pid();
        send(pid, Signal::KILL);
        self.wait_for_end();
    }

    fn wait_for_end(&mut self) {
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                send(self.pid(), Signal::KILL);
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("output.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its data goes with it, so there is no reason to be gentle.
        self.kill();
        if let Some((mut names, _)) = self.name_server.take() {
            let _ = names.kill();
            let _ = names.wait();
        }
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The process of that name that `ancestor`, which we started, has started.
fn descendant(ancestor: u32, name: &str) -> Option<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let parent = rest.split_ascii_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok());
        let command = head.split_once('(').map_or("", |(_, command)| command);
        parents.push((pid, parent.unwrap_or(0), command.to_owned()));
    }
    let parent_of = |pid: u32| parents.iter().find(|(p, ..)| *p == pid).map(|(_, parent, _)| *parent);
    parents.iter().filter(|(.., command)| command == name).map(|(pid, ..)| *pid).find(|pid| {
        let mut at = *pid;
        while at > 1 {
            if at == ancestor {
                return true;
            }
            at = parent_of(at).unwrap_or(0);
        }
        false
    })
}
