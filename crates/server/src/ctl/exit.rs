//! Exit codes, as `rabbitmqctl` has them (from `sysexits.h`).

/// Done.
pub(super) const OK: u8 = 0;
/// The command line makes no sense.
pub(super) const USAGE: u8 = 64;
/// What it names cannot be used.
pub(super) const DATA: u8 = 65;
/// There is no such user.
pub(super) const NO_USER: u8 = 67;
/// The node is not there, or refuses.
pub(super) const UNAVAILABLE: u8 = 69;
/// It is as wanted already, or something went wrong inside.
pub(super) const SOFTWARE: u8 = 70;
/// It took too long.
pub(super) const TEMPORARY: u8 = 75;
