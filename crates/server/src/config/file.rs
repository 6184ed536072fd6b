//! The sysctl format of `rabbitmq.conf`: `key = value` on a line, `#` begins a comment.
//!
//! As RabbitMQ reads it: a key is words with dots in between, a dot that belongs to a word is written `\.`; a value is the rest of the
//! line up to a `#`, without the spaces around it. A value in single quotes may have a `#` in it (RabbitMQ 3.13 and later).
//! Of two lines with the same key the later counts.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{ConfigError, Place};

/// Largest file in bytes that is read: a configuration of this size is a mistake, such as a log or a device.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A setting as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where.
    pub place: Place,
    /// The words of the key.
    pub key: Vec<String>,
    /// The value; never empty unless in quotes.
    pub value: String,
    /// Whether a `#` cut the value short without a space in front of it: `pass#word`.
    pub cut: bool,
}

impl Entry {
    /// The key as it is written.
    pub(super) fn key_text(&self) -> String {
        self.key.iter().map(|word| word.replace('.', "\\.")).collect::<Vec<_>>().join(".")
    }
}

/// Reads a file.
///
/// # Errors
/// What is wrong with it, for the operator.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let cannot_read = |error: io::Error| format!("cannot read the file: {error}");
    let file = std::fs::File::open(path).map_err(cannot_read)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot_read)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("larger than {MAX_FILE_BYTES} bytes: not a configuration"));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

/// The files `*.conf` of a directory, by name.
///
/// # Errors
/// Those of reading the directory.
pub(super) fn conf_files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "conf") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Takes the content of a file apart.
///
/// # Errors
/// The first line that is neither empty, a comment, nor a setting.
pub(super) fn parse(path: &Path, content: &str) -> Result<Vec<Entry>, ConfigError> {
    let mut entries = Vec::new();
    let content = content.strip_prefix('\u{feff}').unwrap_or(content);
    for (index, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = Place::Line { file: path.to_owned(), line: index + 1 };
        let (key, value, cut) = match parse_line(line) {
            Ok(parts) => parts,
            Err(problem) => return Err(ConfigError::new(place, problem)),
        };
        entries.push(Entry { place, key, value, cut });
    }
    Ok(entries)
}

fn parse_line(line: &str) -> Result<(Vec<String>, String, bool), String> {
    let (key, rest) = line.split_once('=').ok_or("expected 'key = value'")?;
    let key = parse_key(key.trim())?;
    let rest = rest.trim();
    if let Some(value) = quoted(rest) {
        return Ok((key, value.to_owned(), false));
    }
    let (value, cut) = match rest.split_once('#') {
        Some((value, _)) => (value.trim_end(), !value.is_empty() && !value.ends_with(char::is_whitespace)),
        None => (rest, false),
    };
    if value.is_empty() {
        return Err("expected a value after '='".to_owned());
    }
    Ok((key, value.to_owned(), cut))
}

/// What is in single quotes, if nothing but a comment follows them. Otherwise the quotes are part of the value.
fn quoted(text: &str) -> Option<&str> {
    let (value, rest) = text.strip_prefix('\'')?.split_once('\'')?;
    let rest = rest.trim_start();
    (rest.is_empty() || rest.starts_with('#')).then_some(value)
}

fn parse_key(text: &str) -> Result<Vec<String>, String> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '.' => words.push(String::new()),
            '\\' => match characters.next() {
                Some(escaped) => words.last_mut().expect("there is always a last word").push(escaped),
                None => return Err("expected a character after '\\' in the key".to_owned()),
            },
            _ if character.is_whitespace() || character == '#' => {
                return Err("expected a key without spaces before '='".to_owned());
            }
            _ => words.last_mut().expect("there is always a last word").push(character),
        }
    }
    if words.iter().any(String::is_empty) {
        return Err("expected a key of words with dots in between before '='".to_owned());
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(content: &str) -> Vec<(String, String)> {
        let entries = parse(Path::new("x.conf"), content).expect("valid");
        entries.into_iter().map(|entry| (entry.key.join("|"), entry.value)).collect()
    }

    fn value(line: &str) -> String {
        let mut entries = entries(line);
        assert_eq!(entries.len(), 1, "{line}");
        entries.remove(0).1
    }

    #[test]
    fn spaces_comments_and_line_ends_do_not_matter() {
        let content = "\u{feff}# comment\n\n  \t\na.b=1\r\n\tc  =  x y \t # comment\n   ## e = 3\nd = 4";
        let expected = [("a|b", "1"), ("c", "x y"), ("d", "4")];
        assert_eq!(entries(content), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn value_ends_at_a_hash_unless_quoted() {
        assert_eq!(value("a = pass#word"), "pass");
        assert_eq!(value("a = 'pass#word'"), "pass#word");
        assert_eq!(value("a = 'x' # comment"), "x");
        assert_eq!(value("a = ' x '"), " x ");
        assert_eq!(value("a = ''"), "");
    }

    #[test]
    fn value_that_a_hash_cut_short_is_marked() {
        let cut = |line| parse(Path::new("x"), line).expect("valid")[0].cut;
        assert!(cut("a = pass#word"));
        assert!(!cut("a = word # comment") && !cut("a = 'pass#word'") && !cut("a = word"));
    }

    #[test]
    fn quotes_elsewhere_belong_to_the_value() {
        for text in ["\"x\"", "x'y", "'it''s'", "'unterminated", "'x' y", "b=c", "%x"] {
            assert_eq!(value(&format!("a = {text}")), text);
        }
    }

    #[test]
    fn dot_in_a_word_is_escaped() {
        assert_eq!(entries(r"loopback_users.my\.user = true")[0].0, "loopback_users|my.user");
        let entry = &parse(Path::new("x"), r"a\.b.c = 1").expect("valid")[0];
        assert_eq!(entry.key_text(), r"a\.b.c");
    }

    #[test]
    fn line_that_is_no_setting_is_refused_with_its_number() {
        for line in
            ["a", "a =", "a = # comment", "= 1", "a..b = 1", ".a = 1", "a b = 1", "[section]", r"a\ = 1", "include x"]
        {
            let error = parse(Path::new("x.conf"), &format!("# one\nfine = 1\n{line}\n")).expect_err(line);
            assert!(error.to_string().starts_with("x.conf:3: expected"), "{error}");
        }
    }

    #[test]
    fn directory_or_endless_file_is_refused() {
        assert!(read(Path::new("/")).unwrap_err().starts_with("cannot read"));
        assert!(read(Path::new("/dev/zero")).unwrap_err().starts_with("larger than"));
    }
}
