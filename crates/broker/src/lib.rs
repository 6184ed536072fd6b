//! See ARCHITECTURE.md.

pub mod topology;
