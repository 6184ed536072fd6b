//! The commands: their arguments, and what is printed before the answer. The words are `rabbitmqctl`'s, which scripts look for.

use super::arguments::CommandLine;

/// A command.
#[derive(Debug)]
pub(super) struct Command {
    /// Its name.
    pub(super) name: &'static str,
    /// Its arguments, for the help.
    pub(super) usage: &'static str,
    /// Fewest and most arguments.
    pub(super) arity: (usize, usize),
    /// Printed before the answer. `{0}` is the first argument, `{vhost}`, `{user}`, `{priority}` and `{node}` what they say.
    banner: &'static str,
}

const MANY: usize = 100;

/// Shorthand for the table below.
const fn command(name: &'static str, usage: &'static str, min: usize, max: usize, banner: &'static str) -> Command {
    Command { name, usage, arity: (min, max), banner }
}

/// All of them, by subject.
pub(super) const COMMANDS: &[Command] = &[
    // Users.
    command("add_user", "<username> [<password>]", 1, 2, "Adding user \"{0}\" ..."),
    command("delete_user", "<username>", 1, 1, "Deleting user \"{0}\" ..."),
    command("change_password", "<username> [<password>]", 1, 2, "Changing password for user \"{0}\" ..."),
    command("clear_password", "<username>", 1, 1, "Clearing password for user \"{0}\" ..."),
    command("authenticate_user", "<username> [<password>]", 1, 2, "Authenticating user \"{0}\" ..."),
    command("hash_password", "[<password>]", 0, 1, ""),
    command("set_user_tags", "<username> [<tag>...]", 1, MANY, "Setting tags for user \"{0}\" to [{tags}] ..."),
    command("list_users", "", 0, 0, "Listing users ..."),
    command("set_user_limits", "<username> <definition>", 2, 2, "Setting user limits to \"{1}\" for user \"{0}\" ..."),
    command("clear_user_limits", "<username> <limit>|all", 2, 2, "Clearing \"{1}\" limit for user \"{0}\" ..."),
    command("list_user_limits", "[--user <username>]", 0, 0, "Listing limits for {users} ..."),
    // Permissions.
    command(
        "set_permissions",
        "[-p <vhost>] <username> <conf> <write> <read>",
        4,
        4,
        "Setting permissions for user \"{0}\" in vhost \"{vhost}\" ...",
    ),
    command(
        "set_permissions_globally",
        "<username> <conf> <write> <read>",
        4,
        4,
        "Setting permissions for user \"{0}\" in all virtual hosts ...",
    ),
    command(
        "clear_permissions",
        "[-p <vhost>] <username>",
        1,
        1,
        "Clearing permissions for user \"{0}\" in vhost \"{vhost}\" ...",
    ),
    command("list_permissions", "[-p <vhost>]", 0, 0, "Listing permissions for vhost \"{vhost}\" ..."),
    command("list_user_permissions", "<username>", 1, 1, "Listing permissions for user \"{0}\" ..."),
    command(
        "set_topic_permissions",
        "[-p <vhost>] <username> <exchange> <write> <read>",
        4,
        4,
        "Setting topic permissions on \"{1}\" for user \"{0}\" in vhost \"{vhost}\" ...",
    ),
    command(
        "clear_topic_permissions",
        "[-p <vhost>] <username> [<exchange>]",
        1,
        2,
        "Clearing topic permissions for user \"{0}\" in vhost \"{vhost}\" ...",
    ),
    command("list_topic_permissions", "[-p <vhost>]", 0, 0, "Listing topic permissions for vhost \"{vhost}\" ..."),
    command("list_user_topic_permissions", "<username>", 1, 1, "Listing topic permissions for user \"{0}\" ..."),
    // Virtual hosts.
    command(
        "add_vhost",
        "<vhost> [--description <text> --tags <a,b> --default-queue-type <type>]",
        1,
        1,
        "Adding vhost \"{0}\" ...",
    ),
    command("delete_vhost", "<vhost>", 1, 1, "Deleting vhost \"{0}\" ..."),
    command("list_vhosts", "[<column>...]", 0, MANY, "Listing vhosts ..."),
    command("set_vhost_tags", "<vhost> [<tag>...]", 1, MANY, "Setting tags for vhost \"{0}\" to [{tags}] ..."),
    command(
        "update_vhost_metadata",
        "<vhost> [--description <text> --tags <a,b> --default-queue-type <type>]",
        1,
        1,
        "Updating metadata of vhost \"{0}\" ...",
    ),
    command("enable_vhost_deletion_protection", "<vhost>", 1, 1, "Protecting vhost \"{0}\" from deletion ..."),
    command(
        "disable_vhost_deletion_protection",
        "<vhost>",
        1,
        1,
        "Taking the protection from deletion from vhost \"{0}\" ...",
    ),
    command(
        "set_vhost_limits",
        "[-p <vhost>] <definition>",
        1,
        1,
        "Setting vhost limits to \"{0}\" for vhost \"{vhost}\" ...",
    ),
    command("clear_vhost_limits", "[-p <vhost>]", 0, 0, "Clearing vhost \"{vhost}\" limits ..."),
    command("list_vhost_limits", "[-p <vhost>] [--global]", 0, 0, "Listing limits for {vhosts} ..."),
    // Policies and parameters.
    command(
        "set_policy",
        "[-p <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>",
        3,
        3,
        "Setting policy \"{0}\" for pattern \"{1}\" to \"{2}\" with priority \"{priority}\" for vhost \"{vhost}\" ...",
    ),
    command("clear_policy", "[-p <vhost>] <name>", 1, 1, "Clearing policy \"{0}\" on vhost \"{vhost}\" ..."),
    command("list_policies", "[-p <vhost>]", 0, 0, "Listing policies for vhost \"{vhost}\" ..."),
    command(
        "set_operator_policy",
        "[-p <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>",
        3,
        3,
        "Setting operator policy override \"{0}\" for pattern \"{1}\" to \"{2}\" with priority \"{priority}\" for vhost \
         \"{vhost}\" ...",
    ),
    command(
        "clear_operator_policy",
        "[-p <vhost>] <name>",
        1,
        1,
        "Clearing operator policy \"{0}\" on vhost \"{vhost}\" ...",
    ),
    command(
        "list_operator_policies",
        "[-p <vhost>]",
        0,
        0,
        "Listing operator policy overrides for vhost \"{vhost}\" ...",
    ),
    command(
        "set_parameter",
        "[-p <vhost>] <component> <name> <value>",
        3,
        3,
        "Setting runtime parameter \"{1}\" for component \"{0}\" to \"{2}\" in vhost \"{vhost}\" ...",
    ),
    command(
        "clear_parameter",
        "[-p <vhost>] <component> <name>",
        2,
        2,
        "Clearing runtime parameter \"{1}\" for component \"{0}\" on vhost \"{vhost}\" ...",
    ),
    command("list_parameters", "[-p <vhost>]", 0, 0, "Listing runtime parameters for vhost \"{vhost}\" ..."),
    command("set_global_parameter", "<name> <value>", 2, 2, "Setting global runtime parameter \"{0}\" to \"{1}\" ..."),
    command("clear_global_parameter", "<name>", 1, 1, "Clearing global runtime parameter \"{0}\" ..."),
    command("list_global_parameters", "", 0, 0, "Listing global runtime parameters ..."),
    // Queues and what is around them.
    command(
        "list_queues",
        "[-p <vhost>] [<column>...]",
        0,
        MANY,
        "Timeout: {timeout} ...\nListing queues for vhost {vhost} ...",
    ),
    command("list_exchanges", "[-p <vhost>] [<column>...]", 0, MANY, "Listing exchanges for vhost {vhost} ..."),
    command("list_bindings", "[-p <vhost>] [<column>...]", 0, MANY, "Listing bindings for vhost {vhost}..."),
    command("list_connections", "[<column>...]", 0, MANY, "Listing connections ..."),
    command("list_channels", "[<column>...]", 0, MANY, "Listing channels ..."),
    command("list_consumers", "[-p <vhost>] [<column>...]", 0, MANY, "Listing consumers in vhost {vhost} ..."),
    command("purge_queue", "[-p <vhost>] <queue>", 1, 1, "Purging queue '{0}' in vhost '{vhost}' ..."),
    command(
        "delete_queue",
        "[-p <vhost>] <queue> [--if-empty] [--if-unused]",
        1,
        1,
        "Deleting queue '{0}' on vhost '{vhost}' {conditions}...",
    ),
    command("close_connection", "<pid or name> <explanation>", 2, 2, "Closing connection {0}, reason: {1}..."),
    command(
        "close_all_connections",
        "[-p <vhost> | --global] <explanation>",
        1,
        1,
        "Closing all connections in {vhosts_plain}, reason: {0}...",
    ),
    command(
        "close_all_user_connections",
        "<username> <explanation>",
        2,
        2,
        "Closing connections of user {0}, reason: {1}...",
    ),
    // Definitions.
    command("import_definitions", "[<file>]", 0, 1, "Importing definitions in JSON from {source} ..."),
    command("export_definitions", "<file>|-", 1, 1, "Exporting definitions in JSON to {source} ..."),
    // The node.
    command("status", "", 0, 0, "Status of node {node} ..."),
    command("cluster_status", "", 0, 0, "Cluster status of node {node} ..."),
    command("environment", "", 0, 0, "Application environment of node {node} ..."),
    command("ping", "", 0, 0, "Will ping {node}. This only checks if the node answers, not what it does"),
    command("version", "", 0, 0, ""),
    command("server_version", "", 0, 0, "Asking node {node} for its RabbitMQ version..."),
    command("await_startup", "[--timeout <seconds>]", 0, 0, "Waiting for node {node} to boot ..."),
    command("wait", "<pidfile> | --pid <pid>", 0, 1, ""),
    command("stop", "[<pidfile>]", 0, 1, "Stopping and halting node {node} ..."),
    command("shutdown", "", 0, 0, "Shutting down RabbitMQ node {node}"),
    command("list_feature_flags", "[<column>...]", 0, MANY, "Listing feature flags ..."),
    command("enable_feature_flag", "<name>|all", 1, 1, "Enabling feature flag \"{0}\" ..."),
    command("list_deprecated_features", "[<column>...]", 0, MANY, "Listing deprecated features ..."),
    command("list_hashes", "", 0, 0, "Listing supported hash algorithms ..."),
    // What probes ask (rabbitmq-diagnostics).
    command("check_running", "", 0, 0, "Checking if RabbitMQ is running on node {node} ..."),
    command("check_local_alarms", "", 0, 0, "Asking node {node} to report any local resource alarms ..."),
    command("check_alarms", "", 0, 0, "Asking node {node} to report any known resource alarms ..."),
    command("check_port_connectivity", "", 0, 0, "Testing TCP connections to all active listeners on node {node} ..."),
    command("check_port_listener", "<port>", 1, 1, "Asking node {node} if there's an active listener on port {0} ..."),
    command("check_virtual_hosts", "", 0, 0, "Checking if all vhosts are running on node {node} ..."),
    command("is_running", "", 0, 0, "Asking node {node} for its status ..."),
    command("is_booting", "", 0, 0, "Asking node {node} for its status ..."),
    command("alarms", "", 0, 0, "Asking node {node} for its alarms ..."),
    command("listeners", "", 0, 0, "Asking node {node} to report its protocol listeners ..."),
];

/// The command of this name.
pub(super) fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

/// The command whose name is nearest to a word, if one is near.
pub(super) fn nearest(word: &str) -> Option<&'static str> {
    const NEAR: usize = 3;
    let candidates = COMMANDS.iter().map(|command| (distance(word, command.name), command.name));
    candidates.min().filter(|(distance, _)| *distance <= NEAR).map(|(_, name)| name)
}

/// How many letters are to be put in, taken out or replaced.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

impl Command {
    /// What is printed before the answer.
    pub(super) fn banner(&self, line: &CommandLine, node: &str) -> String {
        let argument = |place: usize| line.arguments.get(place).map_or("", String::as_str);
        let file = match argument(0) {
            "" => "standard input".to_owned(),
            "-" => "standard output".to_owned(),
            file => format!("a file at \"{file}\""),
        };
        let global = line.has("global");
        let conditions = [("if-unused", "queue is unused"), ("if-empty", "queue is empty")];
        let conditions: Vec<&str> =
            conditions.into_iter().filter(|(flag, _)| line.has(flag)).map(|(_, words)| words).collect();
        let conditions = match conditions.join(" and ") {
            words if words.is_empty() => words,
            words => format!("if {words} "),
        };
        let users = line.option("user").map_or("all users".to_owned(), |user| format!("user \"{user}\""));
        let vhost = line.vhost();
        let vhosts = if global { "all vhosts".to_owned() } else { format!("vhost \"{vhost}\"") };
        let vhosts_plain = if global { "all vhosts".to_owned() } else { format!("vhost {vhost}") };
        let timeout = line.option("timeout").and_then(|text| text.parse().ok()).unwrap_or(60.0_f64);
        let values: [(&str, String); 12] = [
            ("{vhost}", vhost.to_owned()),
            ("{vhosts}", vhosts),
            ("{vhosts_plain}", vhosts_plain),
            ("{users}", users),
            ("{node}", node.to_owned()),
            ("{priority}", line.option("priority").unwrap_or("0").to_owned()),
            ("{tags}", line.arguments.get(1..).unwrap_or_default().join(", ")),
            ("{conditions}", conditions),
            ("{source}", file),
            ("{timeout}", format!("{timeout:?} seconds")),
            ("{0}", argument(0).to_owned()),
            ("{1}", argument(1).to_owned()),
        ];
        let mut out = String::new();
        let mut rest = self.banner;
        // Each place once, from left to right: what an argument says is never expanded again.
        while let Some(start) = rest.find('{') {
            out.push_str(&rest[..start]);
            rest = &rest[start..];
            let third = ("{2}", argument(2));
            let found = values.iter().map(|(name, value)| (*name, value.as_str())).chain([third]);
            match found.into_iter().find(|(name, _)| rest.starts_with(name)) {
                Some((name, value)) => {
                    out.push_str(value);
                    rest = &rest[name.len()..];
                }
                None => {
                    out.push('{');
                    rest = &rest[1..];
                }
            }
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> CommandLine {
        CommandLine::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).expect("valid")
    }

    #[test]
    fn banners_say_what_is_done_and_expand_nothing_twice() {
        let banner = |words: &[&str]| find(words[0]).expect("known").banner(&line(words), "a@b");
        assert_eq!(banner(&["add_user", "{vhost}", "p"]), "Adding user \"{vhost}\" ...");
        assert_eq!(
            banner(&["set_policy", "p", "^q", "{\"max-length\":1}", "-p", "v"]),
            "Setting policy \"p\" for pattern \"^q\" to \"{\"max-length\":1}\" with priority \"0\" for vhost \"v\" ..."
        );
        assert_eq!(banner(&["list_queues"]), "Timeout: 60.0 seconds ...\nListing queues for vhost / ...");
        assert_eq!(
            banner(&["delete_queue", "q", "--if-unused"]),
            "Deleting queue 'q' on vhost '/' if queue is unused ..."
        );
        assert_eq!(banner(&["delete_queue", "q"]), "Deleting queue 'q' on vhost '/' ...");
        assert_eq!(banner(&["set_user_tags", "u", "a", "b"]), "Setting tags for user \"u\" to [a, b] ...");
    }

    #[test]
    fn a_mistyped_command_is_recognised() {
        assert_eq!(nearest("list_quees"), Some("list_queues"));
        assert_eq!(nearest("frobnicate"), None);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
