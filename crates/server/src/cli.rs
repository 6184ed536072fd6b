//! The command line. What it leaves out comes from the environment, then from the files, then from the defaults (see [`crate::config`]).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{ListenAddress, LogFormat, LogLevel};

/// A persistent AMQP 0-9-1 broker.
#[derive(Debug, Parser)]
#[command(name = "warrenmq", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node (what happens without a command, too).
    Server(ServerArgs),
    /// Administer a running node, with the commands and output of rabbitmqctl (see `warrenmq ctl help`).
    #[command(disable_help_flag = true)]
    Ctl {
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Put load on a broker, this or any other, and measure.
    Perf(Box<perf::PerfArgs>),
}

/// How to run a node.
#[derive(Debug, Default, Args)]
pub(crate) struct ServerArgs {
    /// Configuration in the format of rabbitmq.conf; files `conf.d/*.conf` next to it are read after it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the node keeps its data [default: ./warrenmq-data]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Start with a damaged data directory, without what is lost: the log says what that is
    #[arg(long)]
    pub accept_damage: bool,
    /// Where to listen for AMQP; may be given more than once [default: 5672, all interfaces]
    #[arg(long, value_name = "ADDR:PORT", value_parser = ListenAddress::parse_with_ephemeral)]
    pub listen: Vec<ListenAddress>,
    /// The node's name, such as rabbit@host
    #[arg(long, value_name = "NAME", value_parser = crate::config::parse_node_name)]
    pub node_name: Option<String>,
    /// Least important messages to log: debug, info, warning, error or none [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// How log lines look: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// What the process is to do.
#[derive(Debug)]
pub(crate) enum Task {
    /// To be a node.
    Serve(ServerArgs),
    /// To put load on a broker.
    Perf(Box<perf::PerfArgs>),
}

impl Cli {
    /// What was asked for, with its arguments, wherever they were given.
    pub(crate) fn into_task(self) -> Task {
        match self.command {
            Some(Command::Server(args)) => Task::Serve(args),
            Some(Command::Perf(args)) => Task::Perf(args),
            // `ctl` is taken before this is asked, whatever its words are; `--config X ctl` is refused by clap.
            Some(Command::Ctl { .. }) | None => Task::Serve(self.server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<ServerArgs, clap::Error> {
        match Cli::try_parse_from([&["warrenmq"], arguments].concat())?.into_task() {
            Task::Serve(args) => Ok(args),
            Task::Perf(_) => panic!("not a node"),
        }
    }

    #[test]
    fn arguments_mean_the_same_with_and_without_the_command() {
        for command in [&[][..], &["server"]] {
            let args =
                parse(&[command, &["--listen", "127.0.0.1:0", "--listen", "5673", "--node-name", "a@b"]].concat());
            let args = args.expect("valid");
            assert_eq!(args.listen, [ListenAddress::Ip("127.0.0.1:0".parse().unwrap()), ListenAddress::Any(5673)]);
            assert_eq!(args.node_name.as_deref(), Some("a@b"));
        }
        assert!(parse(&[]).expect("valid").listen.is_empty());
        assert!(parse(&["--accept-damage"]).expect("valid").accept_damage && !parse(&[]).expect("valid").accept_damage);
    }

    #[test]
    fn bad_arguments_are_refused() {
        for arguments in [
            &["--listen", "nowhere"][..],
            &["--log-level", "loud"],
            &["--log-format", "xml"],
            &["--node-name", "@"],
            &["x"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn definition_of_the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
