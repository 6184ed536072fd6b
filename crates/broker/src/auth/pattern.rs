//! The regular expressions of permissions: unanchored, compiled once, bounded in size.
//!
//! RabbitMQ matches bytes with a backtracking engine. Here matching is linear in the name, whatever the expression; the price
//! is that look-around and back-references are refused when the permission is set.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// Longest regular expression in bytes. Longer ones are a list that should have been a naming scheme.
pub const MAX_PATTERN_BYTES: usize = 4096;

/// Memory of a compiled expression, and of the states it may cache while it matches, in bytes: nested repetitions such as
/// `(a{1000}){1000}` end here.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Nesting depth of an expression: it is parsed by recursion.
const MAX_NESTING: u32 = 64;

/// Why a regular expression was refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatternError {
    /// More than [`MAX_PATTERN_BYTES`].
    #[error("longer than {MAX_PATTERN_BYTES} bytes")]
    TooLong,
    /// Syntax that the engine does not know, or a compiled size above the limit; the engine's words, on one line.
    #[error("{0}")]
    Invalid(String),
}

/// A compiled regular expression and its source.
#[derive(Clone)]
pub struct Pattern {
    source: String,
    matcher: Matcher,
}

#[derive(Clone)]
enum Matcher {
    /// The empty expression: only the empty name.
    EmptyName,
    /// `.*`, which almost every permission is: no need to look.
    Everything,
    Regex(Regex),
}

impl Pattern {
    /// Compiles the expression.
    ///
    /// # Errors
    /// See [`PatternError`].
    pub fn new(source: &str) -> Result<Self, PatternError> {
        Self::compile(source, source)
    }

    /// Compiles `expression` and remembers `source`, from which it was made.
    pub(super) fn compile(source: &str, expression: &str) -> Result<Self, PatternError> {
        if expression.len() > MAX_PATTERN_BYTES {
            return Err(PatternError::TooLong);
        }
        let matcher = match expression {
            "" => Matcher::EmptyName,
            ".*" => Matcher::Everything,
            // Bytes first, as RabbitMQ does and because it is small; classes of other letters need the larger machine.
            _ => Matcher::Regex(build(expression, false).or_else(|_| build(expression, true))?),
        };
        Ok(Self { source: source.to_owned(), matcher })
    }

    /// Whether the expression matches anywhere in the name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match &self.matcher {
            Matcher::EmptyName => name.is_empty(),
            Matcher::Everything => true,
            Matcher::Regex(regex) => regex.is_match(name.as_bytes()),
        }
    }

    /// The expression as it was set.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

fn build(expression: &str, unicode: bool) -> Result<Regex, PatternError> {
    RegexBuilder::new(expression)
        .unicode(unicode)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .nest_limit(MAX_NESTING)
        .build()
        .map_err(|error| PatternError::Invalid(last_line(&error.to_string())))
}

/// The engine draws the expression with a caret over several lines; the reason stands in the last one.
fn last_line(text: &str) -> String {
    let line = text.lines().last().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(expression: &str, name: &str) -> bool {
        Pattern::new(expression).expect("valid").matches(name)
    }

    #[test]
    fn empty_expression_matches_only_the_empty_name() {
        assert!(matches("", ""));
        assert!(!matches("", "a"));
    }

    #[test]
    fn expressions_are_not_anchored() {
        assert!(matches("b", "abc"));
        assert!(!matches("^b", "abc"));
        assert!(matches("^(amq\\.gen.*|amq\\.default)$", "amq.default"));
        assert!(!matches("^(amq\\.gen.*|amq\\.default)$", "amqXdefault"));
    }

    #[test]
    fn everything_and_the_empty_name() {
        assert!(matches(".*", "") && matches(".*", "a\nb"));
    }

    #[test]
    fn names_beyond_ascii_match_as_text_and_in_classes() {
        assert!(matches("^straße$", "straße"));
        assert!(matches("^[äö]$", "ä"));
        assert!(!matches("^[äö]$", "ü"));
    }

    #[test]
    fn bombs_and_unknown_syntax_are_refused_with_a_reason_on_one_line() {
        let nested = format!("{}a{}", "(".repeat(200), ")".repeat(200));
        for expression in ["(a{1000}){1000}", "(", "(?=a)", "(a)\\1", nested.as_str()] {
            let Err(PatternError::Invalid(reason)) = Pattern::new(expression) else { panic!("{expression} compiled") };
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
        }
        assert_eq!(Pattern::new(&"a".repeat(MAX_PATTERN_BYTES + 1)).unwrap_err(), PatternError::TooLong);
    }
}
