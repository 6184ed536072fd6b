//! From a command line to what stands on the screen, and an exit code.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::arguments::CommandLine;
use super::client::{Answer, AskError, ask, ask_for};
use super::commands::{COMMANDS, Command, find, nearest};
use super::format::{Format, cell};
use super::{exit, status};
use crate::cli::ServerArgs;
use crate::config::{self, Environment};

/// How long a node may take to answer, unless `--timeout` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a node may take to start.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a node may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a node that is awaited is looked for.
const POLL: Duration = Duration::from_millis(100);
/// Longest document that is imported: what the node takes.
const MAX_DOCUMENT_BYTES: u64 = broker::admin::MAX_DEFINITIONS_BYTES as u64;

/// What a command comes to.
struct Outcome {
    /// For standard output.
    out: String,
    /// For standard error.
    err: String,
    code: u8,
}

impl Outcome {
    fn done(out: impl Into<String>) -> Self {
        Self { out: out.into(), err: String::new(), code: exit::OK }
    }

    fn failed(code: u8, err: impl Into<String>) -> Self {
        Self { out: String::new(), err: err.into(), code }
    }

    /// As `rabbitmqctl` reports what a node refuses.
    fn error(code: u8, text: &str) -> Self {
        Self::failed(code, format!("Error:\n{text}\n"))
    }
}

/// Where the node is, and what it is called.
struct Node {
    name: String,
    data_dir: PathBuf,
}

/// Runs a command.
pub(super) fn run(program: &str, words: &[String]) -> ExitCode {
    let outcome = match CommandLine::parse(words) {
        Ok(line) => command(program, words, line),
        Err(option) => usage(words, program, &format!("Invalid options for this command:\n{option}"), None),
    };
    print(&outcome.out, &outcome.err);
    ExitCode::from(outcome.code)
}

fn print(out: &str, err: &str) {
    // A reader that went away wants nothing more.
    let _ = std::io::stdout().write_all(out.as_bytes());
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().write_all(err.as_bytes());
}

fn command(program: &str, words: &[String], mut line: CommandLine) -> Outcome {
    let name = match line.command.as_deref() {
        None | Some("help") => return help(program, line.arguments.first().map(String::as_str)),
        Some(name) if line.has("help") => return help(program, Some(name)),
        Some(name) => name,
    };
    let Some(command) = find(name) else {
        let near = nearest(name).map(|near| format!("\nDid you mean '{near}'?\n")).unwrap_or_default();
        let text = format!("\nCommand '{name}' not found.\n{near}\nSee '{program} help'.\n");
        return Outcome::failed(exit::USAGE, text);
    };
    let (fewest, most) = command.arity;
    if line.arguments.len() < fewest {
        return usage(words, program, "not enough arguments.", Some(command));
    }
    if line.arguments.len() > most {
        return usage(words, program, "too many arguments.", Some(command));
    }
    let Some(format) = Format::from_name(line.option("formatter").unwrap_or("table")) else {
        return usage(words, program, "formatter is not supported", Some(command));
    };
    if line.option("timeout").is_some_and(|text| text.parse::<f64>().is_err()) {
        return usage(words, program, "Invalid options for this command:\n--timeout", Some(command));
    }
    if command.name == "version" {
        return Outcome::done(format!("{}\n", config::COMPATIBLE_VERSION));
    }
    let node = match node(&line) {
        Ok(node) => node,
        Err(text) => return Outcome::error(exit::UNAVAILABLE, &text),
    };
    if let Err(failed) = read_locally(command, words, program, &mut line) {
        return failed;
    }
    let quiet = line.has("quiet") || line.has("silent") || format.is_for_programs();
    let banner = command.banner(&line, &node.name);
    if !quiet && !banner.is_empty() {
        // At once: what follows may take its time.
        print(&format!("{banner}\n"), "");
    }
    let mut outcome = carry_out(command, words, program, &node, &line, format);
    if quiet && outcome.code == exit::OK && is_remark(command) {
        outcome.out.clear();
    }
    outcome
}

/// Commands whose output is a remark for people.
fn is_remark(command: &Command) -> bool {
    matches!(command.name, "add_user" | "delete_queue" | "import_definitions" | "close_all_connections")
}

fn node(line: &CommandLine) -> Result<Node, String> {
    let environment = Environment::of_process().map_err(|error| error.to_string())?;
    let args = ServerArgs {
        config: line.option("config").map(PathBuf::from),
        data_dir: line.option("data-dir").map(PathBuf::from),
        ..ServerArgs::default()
    };
    let loaded = config::load(&args, &environment).map_err(|error| error.to_string())?;
    let name = line.option("node").map_or(loaded.config.node_name, str::to_owned);
    Ok(Node { name, data_dir: loaded.config.data_dir })
}

/// What a command takes from this side: passwords from standard input, documents from files. It replaces the arguments.
fn read_locally(command: &Command, words: &[String], program: &str, line: &mut CommandLine) -> Result<(), Outcome> {
    match command.name {
        "add_user" | "change_password" | "authenticate_user" if line.arguments.len() == 1 => {
            let mut password = String::new();
            let _ = std::io::stdin().take(4096).read_to_string(&mut password);
            let password = password.trim_end_matches(['\r', '\n']);
            if password.is_empty() {
                return Err(Outcome::error(exit::DATA, "Password is not provided via argument or stdin"));
            }
            line.arguments.push(password.to_owned());
        }
        "export_definitions" => {
            let directory = Path::new(&line.arguments[0]).parent().filter(|parent| !parent.as_os_str().is_empty());
            if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
                let text = format!("Bad argument: Directory {} does not exist", directory.display());
                return Err(Outcome { code: exit::DATA, ..usage(words, program, &text, Some(command)) });
            }
        }
        "import_definitions" => {
            if let Some(file) = line.arguments.first().filter(|file| *file != "-" && !Path::new(file).is_file()) {
                let text = format!("Bad argument: File {file} does not exist");
                return Err(Outcome { code: exit::DATA, ..usage(words, program, &text, Some(command)) });
            }
        }
        _ => {}
    }
    Ok(())
}

fn carry_out(
    command: &Command,
    words: &[String],
    program: &str,
    node: &Node,
    line: &CommandLine,
    format: Format,
) -> Outcome {
    let seconds = line.option("timeout").and_then(|text| text.parse::<f64>().ok());
    let timeout = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(STARTUP_TIMEOUT));
    match command.name {
        "await_startup" => return await_startup(node, timeout.unwrap_or(STARTUP_TIMEOUT)),
        "wait" => return wait(node, line, timeout.unwrap_or(STARTUP_TIMEOUT)),
        "import_definitions" => return import(node, line, timeout),
        "hash_password" => return hash_password(line),
        "list_hashes" => return Outcome::done("sha256\nsha512\nmd5\n"),
        _ => {}
    }
    // A zero would be refused by the system.
    let patience = Some(timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(TIMEOUT));
    match ask(&node.data_dir, line, patience) {
        Ok(answer) => show(command, node, line, format, answer),
        Err(AskError::Timeout) => {
            Outcome::error(exit::TEMPORARY, &format!("operation {} on node {} timed out", command.name, node.name))
        }
        Err(AskError::Unreachable(why)) => unreachable(node, &why),
        Err(AskError::Refused { kind, text }) => refused(command, words, program, line, &kind, &text),
    }
}

fn unreachable(node: &Node, why: &str) -> Outcome {
    let (name, directory) = (&node.name, node.data_dir.display());
    let text = format!(
        "Error: unable to perform an operation on node '{name}'. Please see diagnostics information and suggestions \
         below.\n\nThe node is asked over the socket in its data directory {directory}: {why}\n\nMost common reasons for \
         this are:\n\n * The node is not running\n * Its data directory is another: see --data-dir, WARRENMQ_DATA_DIR and \
         the configuration\n * This user is not the one that runs the node\n"
    );
    Outcome::failed(exit::UNAVAILABLE, text)
}

fn refused(command: &Command, words: &[String], program: &str, line: &CommandLine, kind: &str, text: &str) -> Outcome {
    match kind {
        "usage" => usage(words, program, text, Some(command)),
        "no_such_user" => {
            let user = line.arguments.first().map_or("", String::as_str);
            match command.name {
                "delete_user" => Outcome::error(exit::NO_USER, text),
                _ => Outcome::error(exit::NO_USER, &format!("User {user} does not exist")),
            }
        }
        "no_such_vhost" if command.name.starts_with("list_") || command.name == "delete_vhost" => {
            Outcome::failed(exit::DATA, format!("{text}\n"))
        }
        "already_exists" => Outcome::error(exit::SOFTWARE, text),
        "login" => {
            let user = line.arguments.first().map_or("", String::as_str);
            Outcome::error(exit::DATA, &format!("Error: failed to authenticate user \"{user}\"\n{text}"))
        }
        "data" => Outcome::error(exit::DATA, text),
        "invalid"
            if command.name.contains("polic")
                || command.name.contains("parameter")
                || command.name.contains("limits") =>
        {
            Outcome::error(exit::UNAVAILABLE, &format!("Validation failed\n\n{text}\n"))
        }
        "not_found" if command.name == "purge_queue" => Outcome::error(exit::UNAVAILABLE, "not_found"),
        "not_found" if command.name == "delete_queue" => Outcome::error(exit::USAGE, "Queue not found"),
        "refused" if command.name == "delete_queue" => Outcome::error(exit::USAGE, text),
        _ => Outcome::error(exit::UNAVAILABLE, text),
    }
}

/// What the node answered, in words.
fn show(command: &Command, node: &Node, line: &CommandLine, format: Format, answer: Answer) -> Outcome {
    let Some(value) = answer.value else {
        if answer.fields.is_empty() {
            return Outcome::done(match command.name {
                "add_user" => {
                    "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help \
                               set_permissions' to learn more.\n"
                        .to_owned()
                }
                "authenticate_user" => "Success\n".to_owned(),
                _ if format == Format::Json => "{\"result\":\"ok\"}\n".to_owned(),
                _ => String::new(),
            });
        }
        let headers = !line.has("silent") && !line.has("no-table-headers");
        return Outcome::done(format.rows(&answer.fields, &answer.rows, headers));
    };
    match command.name {
        "export_definitions" => export(line, &value),
        "delete_queue" => {
            Outcome::done(format!("Queue was successfully deleted with {} ready messages\n", cell(&value)))
        }
        "close_all_connections" | "close_all_user_connections" => {
            Outcome::done(format!("Closed {} connections\n", cell(&value)))
        }
        "list_vhost_limits" | "list_user_limits" if format != Format::Json => {
            let is_empty = value.as_object().is_none_or(serde_json::Map::is_empty);
            Outcome::done(if is_empty { "\n".to_owned() } else { format!("{value}\n") })
        }
        "shutdown" | "stop" => await_stop(node, &value),
        _ if format == Format::Json => Outcome::done(format!("{value}\n")),
        _ => status::show(command.name, &node.name, line, &value)
            .map_or_else(|(code, text)| Outcome::error(code, &text), Outcome::done),
    }
}

fn export(line: &CommandLine, value: &Value) -> Outcome {
    match line.arguments[0].as_str() {
        "-" => Outcome::done(format!("{value}\n")),
        // Users and their hashes are in it.
        file => match write_private(Path::new(file), &value.to_string()) {
            Ok(()) => Outcome::done(""),
            Err(error) => Outcome::error(exit::UNAVAILABLE, &format!("cannot write {file}: {error}")),
        },
    }
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

fn import(node: &Node, line: &CommandLine, timeout: Option<Duration>) -> Outcome {
    let mut document = String::new();
    let read = match line.arguments.first().map(String::as_str) {
        None | Some("-") => std::io::stdin().take(MAX_DOCUMENT_BYTES + 1).read_to_string(&mut document),
        Some(path) => {
            std::fs::File::open(path).and_then(|file| file.take(MAX_DOCUMENT_BYTES + 1).read_to_string(&mut document))
        }
    };
    if let Err(error) = read {
        return Outcome::error(exit::DATA, &format!("cannot read the definitions: {error}"));
    }
    if document.trim().is_empty() {
        return Outcome::error(exit::DATA, "there are no definitions in it");
    }
    let patience = Some(timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(STARTUP_TIMEOUT));
    match ask_for(&node.data_dir, "import_definitions", &[document], &json!({}), patience) {
        Ok(Answer { value: Some(report), .. }) => {
            let lines = |name: &str| {
                let texts = report[name].as_array().into_iter().flatten().filter_map(Value::as_str);
                texts.map(|text| format!(" * {text}\n")).collect::<String>()
            };
            let mut out = format!("Successfully imported definitions: {} items\n", cell(&report["imported"]));
            if !lines("skipped").is_empty() {
                out.push_str(&format!("Left out:\n{}", lines("skipped")));
            }
            match report["failed"].as_u64() {
                Some(0) => Outcome::done(out),
                failed => Outcome::error(
                    exit::UNAVAILABLE,
                    &format!("{} items were not imported:\n{}", failed.unwrap_or_default(), lines("problems")),
                ),
            }
        }
        Ok(_) => Outcome::error(exit::SOFTWARE, "the node's answer makes no sense"),
        Err(AskError::Timeout) => Outcome::error(exit::TEMPORARY, "the import takes longer than is waited for"),
        Err(AskError::Unreachable(why)) => unreachable(node, &why),
        Err(AskError::Refused { text, .. }) => Outcome::error(exit::DATA, &text),
    }
}

fn hash_password(line: &CommandLine) -> Outcome {
    let mut password = line.arguments.first().cloned().unwrap_or_default();
    if password.is_empty() {
        let _ = std::io::stdin().take(4096).read_to_string(&mut password);
    }
    let password = password.trim_end_matches(['\r', '\n']);
    match broker::auth::PasswordHash::new(broker::auth::Password::Plain(password)) {
        Ok(Some(hash)) => Outcome::done(format!("Will hash password {password}\n{}\n", hash.to_base64())),
        Ok(None) => Outcome::error(exit::DATA, "Password cannot be blank/empty"),
        Err(error) => Outcome::error(exit::SOFTWARE, &error.to_string()),
    }
}

/// Asks until the node answers.
fn await_startup(node: &Node, timeout: Duration) -> Outcome {
    let deadline = Instant::now() + timeout;
    loop {
        match ask_for(&node.data_dir, "await_startup", &[], &json!({}), Some(TIMEOUT)) {
            Ok(_) => return Outcome::done(""),
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(AskError::Unreachable(why)) => return unreachable(node, &why),
            Err(_) => return Outcome::error(exit::TEMPORARY, "the node does not start in time"),
        }
    }
}

/// Waits for a process, and for the node.
fn wait(node: &Node, line: &CommandLine, timeout: Duration) -> Outcome {
    let deadline = Instant::now() + timeout;
    let pid_in = |file: &str| std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    let pid = loop {
        let pid = match (line.option("pid"), line.arguments.first()) {
            (Some(pid), _) => Some(pid.to_owned()),
            (None, Some(file)) => pid_in(file),
            (None, None) => return Outcome::error(exit::USAGE, "Name a file with a process id, or give --pid"),
        };
        match pid {
            Some(pid) if Path::new("/proc").join(&pid).is_dir() && !pid.is_empty() => break pid,
            Some(pid) if line.option("pid").is_some() => {
                return Outcome::error(exit::UNAVAILABLE, &format!("process_not_running {pid}"));
            }
            _ if Instant::now() >= deadline => return Outcome::error(exit::TEMPORARY, "there is no process in time"),
            _ => std::thread::sleep(POLL),
        }
    };
    if !line.has("quiet") && !line.has("silent") {
        print(&format!("Waiting for process {pid} to be node '{}'\n", node.name), "");
    }
    await_startup(node, deadline.saturating_duration_since(Instant::now()))
}

/// Waits until the node's process is gone.
fn await_stop(node: &Node, status: &Value) -> Outcome {
    let process = Path::new("/proc").join(cell(&status["pid"]));
    let deadline = Instant::now() + STOP_TIMEOUT;
    while process.is_dir() && std::os::unix::net::UnixStream::connect(node.data_dir.join("ctl.sock")).is_ok() {
        if Instant::now() >= deadline {
            return Outcome::error(exit::TEMPORARY, "the node does not stop in time");
        }
        std::thread::sleep(POLL);
    }
    Outcome::done("")
}

fn usage(words: &[String], program: &str, text: &str, command: Option<&Command>) -> Outcome {
    let of_command = command.map(|command| format!("{program} {} {}", command.name, command.usage)).unwrap_or_default();
    let text = format!(
        "Error (argument validation): {text}\nArguments given:\n\t{}\n\nUsage\n\n{of_command}\n",
        words.join(" ")
    );
    Outcome::failed(exit::USAGE, text)
}

fn help(program: &str, of: Option<&str>) -> Outcome {
    if let Some(name) = of {
        return match find(name) {
            Some(command) => Outcome::done(format!("\nUsage\n\n{program} {name} {}\n", command.usage)),
            None => Outcome::failed(exit::USAGE, format!("Command '{name}' not found.\n")),
        };
    }
    let mut text = format!(
        "\nUsage\n\n{program} [--node <node>] [--data-dir <directory>] [--timeout <seconds>] [--quiet] <command> \
         [<arguments>]\n\nCommands:\n\n"
    );
    for command in COMMANDS {
        text.push_str(&format!("   {} {}\n", command.name, command.usage));
    }
    Outcome::done(text)
}
