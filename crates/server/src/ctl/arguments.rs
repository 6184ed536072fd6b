//! The command line of `rabbitmqctl`: options anywhere, as `--name value` or `--name=value`, and the rest in order.

use std::collections::BTreeMap;

/// Options with a value, by each of their names.
const WITH_VALUE: &[(&str, &str)] = &[
    ("-n", "node"),
    ("--node", "node"),
    ("-p", "vhost"),
    ("--vhost", "vhost"),
    ("-t", "timeout"),
    ("--timeout", "timeout"),
    ("--formatter", "formatter"),
    ("--priority", "priority"),
    ("--apply-to", "apply-to"),
    ("--description", "description"),
    ("--tags", "tags"),
    ("--default-queue-type", "default-queue-type"),
    ("--user", "user"),
    ("--pid", "pid"),
    ("-P", "pid"),
    ("--format", "format"),
    ("--per-connection-delay", "per-connection-delay"),
    ("--limit", "limit"),
    ("--config", "config"),
    ("--data-dir", "data-dir"),
    ("--erlang-cookie", "erlang-cookie"),
    ("--printer", "printer"),
];

/// Options without one.
const FLAGS: &[(&str, &str)] = &[
    ("-q", "quiet"),
    ("--quiet", "quiet"),
    ("-s", "silent"),
    ("--silent", "silent"),
    ("-l", "longnames"),
    ("--longnames", "longnames"),
    ("--no-table-headers", "no-table-headers"),
    ("--table-headers", "table-headers"),
    ("--dry-run", "dry-run"),
    ("--help", "help"),
    ("-h", "help"),
    ("--global", "global"),
    ("--online", "online"),
    ("--offline", "offline"),
    ("--local", "local"),
    ("-e", "if-empty"),
    ("--if-empty", "if-empty"),
    ("-u", "if-unused"),
    ("--if-unused", "if-unused"),
    ("--skip-if-unchanged", "skip-if-unchanged"),
    ("--pre-hashed-password", "pre-hashed-password"),
];

/// A command line, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// The first word that is no option.
    pub(super) command: Option<String>,
    /// The words after it.
    pub(super) arguments: Vec<String>,
    /// By name; of flags the value is `true`. Of two the later counts.
    pub(super) options: BTreeMap<&'static str, String>,
}

impl CommandLine {
    /// Takes a command line apart.
    ///
    /// # Errors
    /// An option that is not known, or lacks its value, as it stands there.
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let mut line = Self::default();
        let mut words = words.iter();
        let mut only_words = false;
        while let Some(word) = words.next() {
            if only_words || !word.starts_with('-') || word == "-" {
                line.put_word(word);
            } else if word == "--" {
                only_words = true;
            } else {
                line.put_option(word, &mut words)?;
            }
        }
        Ok(line)
    }

    fn put_word(&mut self, word: &str) {
        match self.command {
            None => self.command = Some(word.to_owned()),
            Some(_) => self.arguments.push(word.to_owned()),
        }
    }

    fn put_option<'a>(&mut self, word: &str, words: &mut impl Iterator<Item = &'a String>) -> Result<(), String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (word, None),
        };
        let find = |known: &[(&'static str, &'static str)]| {
            known.iter().find(|(spelling, _)| *spelling == name).map(|(_, meaning)| *meaning)
        };
        if let Some(option) = find(WITH_VALUE) {
            let value = value.map(str::to_owned).or_else(|| words.next().cloned()).ok_or_else(|| word.to_owned())?;
            self.options.insert(option, value);
        } else if let Some(flag) = find(FLAGS).filter(|_| value.is_none_or(|value| value == "true")) {
            self.options.insert(flag, "true".to_owned());
        } else {
            return Err(word.to_owned());
        }
        Ok(())
    }

    /// An option's value.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Whether a flag is set.
    pub(super) fn has(&self, flag: &str) -> bool {
        self.options.contains_key(flag)
    }

    /// The virtual host that is meant.
    pub(super) fn vhost(&self) -> &str {
        self.option("vhost").unwrap_or("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<CommandLine, String> {
        CommandLine::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere_and_in_both_forms() {
        let line = parse(&["-q", "-n", "a@b", "set_policy", "-p", "v", "name", "--priority=3", ".*", "{}"]).unwrap();
        assert_eq!(line.command.as_deref(), Some("set_policy"));
        assert_eq!(line.arguments, ["name", ".*", "{}"]);
        assert_eq!((line.vhost(), line.option("priority"), line.has("quiet")), ("v", Some("3"), true));
    }

    #[test]
    fn words_behind_two_dashes_are_no_options() {
        let line = parse(&["add_user", "--", "-u", "-p"]).unwrap();
        assert_eq!(line.arguments, ["-u", "-p"]);
        assert_eq!(line.vhost(), "/");
    }

    #[test]
    fn unknown_options_and_missing_values_are_refused() {
        assert_eq!(parse(&["list_users", "--nonsense"]), Err("--nonsense".to_owned()));
        assert_eq!(parse(&["list_users", "-p"]), Err("-p".to_owned()));
        assert_eq!(parse(&["list_users", "--quiet=3"]), Err("--quiet=3".to_owned()));
    }
}
