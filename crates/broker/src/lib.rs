//! See ARCHITECTURE.md.

pub mod auth;
pub mod memory;
