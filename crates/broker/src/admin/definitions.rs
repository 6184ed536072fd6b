//! Definitions: users, virtual hosts, permissions, parameters, policies, queues, exchanges and bindings as one JSON document, in the format in
//! which RabbitMQ 3.8 to 4.3 writes and reads them.
//!
//! An import adds: users, permissions, parameters and policies replace those of the same name, queues, exchanges and bindings that are there stay as they
//! are. Each section is one batch for the metadata's log. An item that cannot be is named in the report, and the rest is imported.

mod export;
mod import;

/// Longest document that is read, in bytes: 100,000 queues with a binding each take half of it.
pub const MAX_DEFINITIONS_BYTES: usize = 64 * 1024 * 1024;

/// What came of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Items that are as the document wants them.
    pub imported: usize,
    /// Why the others are not, as far as [`ImportReport::MAX_PROBLEMS`] go.
    pub problems: Vec<String>,
    /// How many others there are.
    pub failed: usize,
    /// What was passed over on purpose, and why.
    pub skipped: Vec<String>,
}

impl ImportReport {
    /// Problems that are kept: a document that is wrong throughout must not take its size again.
    pub const MAX_PROBLEMS: usize = 100;

    fn failed(&mut self, what: &str, why: impl std::fmt::Display) {
        self.failed += 1;
        if self.problems.len() < Self::MAX_PROBLEMS {
            self.problems.push(format!("{what}: {why}"));
        }
    }

    fn skipped(&mut self, what: &str, why: impl std::fmt::Display) {
        if self.skipped.len() < Self::MAX_PROBLEMS {
            self.skipped.push(format!("{what}: {why}"));
        }
    }
}
