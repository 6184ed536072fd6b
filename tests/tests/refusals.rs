//! A data directory that cannot be used: the broker ends with status 1 and one line that says what is wrong with which file.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use warrenmq_tests::node::binary;
use warrenmq_tests::power::skipped;
use warrenmq_tests::{Node, Refusal, Setup, Wire};

/// A user without rights. Only its number is needed.
const NOBODY: u32 = 65_534;

/// Why the broker does not start on this data directory.
#[track_caller]
fn refusal(setup: Setup) -> Refusal {
    match Node::try_start(setup) {
        Ok(node) => panic!("the broker started; its log:\n{}", node.log()),
        Err(refusal) => refusal,
    }
}

/// A data directory that a broker has used and left in order.
fn used() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut node = Node::start_as(Setup::on(directory.path()));
    node.terminate();
    assert!(node.wait().success());
    directory
}

#[test]
fn data_directory_in_use_is_refused_and_the_first_broker_goes_on() {
    let first = Node::start();
    let refusal = refusal(Setup::on(&first.data_dir()));
    let directory = first.data_dir();
    assert_eq!(
        refusal.reason(),
        format!("the node cannot start: the data directory {} is in use by another process", directory.display())
    );
    Wire::open(&first).close();
}

#[test]
fn data_directory_of_a_newer_format_is_refused() {
    let directory = used();
    let identity = directory.path().join("identity");
    let mut bytes = fs::read(&identity).expect("the identity of the node");
    bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
    let checksum = crc32c(&[&bytes[..12], &bytes[16..64]].concat());
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&identity, &bytes).expect("the test's own file");
    let refusal = refusal(Setup::on(directory.path()));
    let expected =
        format!("the node cannot start: {} has format 7; this release reads formats up to 1", identity.display());
    assert_eq!(refusal.reason(), expected);
    assert_eq!(fs::read(&identity).expect("still there"), bytes, "it was not touched");
}

#[test]
fn log_file_of_another_node_is_refused() {
    let (ours, theirs) = (used(), used());
    let log = Path::new("log/00000000000000000001.log");
    fs::copy(theirs.path().join(log), ours.path().join(log)).expect("the test's own files");
    let refusal = refusal(Setup::on(ours.path()));
    let file = ours.path().join(log);
    assert_eq!(
        refusal.reason(),
        format!("the node cannot start: {} belongs to another node or cluster", file.display())
    );
}

#[test]
fn data_without_the_identity_of_its_node_is_refused() {
    let directory = used();
    let identity = directory.path().join("identity");
    fs::remove_file(&identity).expect("the identity of the node");
    let reason = refusal(Setup::on(directory.path()));
    let reason = reason.reason();
    assert!(
        reason.contains(&format!("{} is damaged at offset 0: the file is missing", identity.display())),
        "{reason}"
    );
    assert!(!identity.exists(), "no new identity was made");
}

#[test]
fn data_directory_that_is_not_writable_is_refused() {
    let directory = used();
    if fs::metadata(directory.path()).expect("it is there").uid() != 0 {
        return skipped("only root can run a broker as another user");
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    // Another user must reach both the binary and the directory.
    for path in [place.path(), directory.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the test's own directory");
    }
    let copy = place.path().join("warrenmq");
    fs::copy(binary(), &copy).expect("a copy of the binary");
    let setup = |data_dir: &Path| Setup { uid: Some(NOBODY), binary: Some(copy.clone()), ..Setup::on(data_dir) };

    let refused = refusal(setup(directory.path()));
    let reason = refused.reason();
    let expected =
        format!("the node cannot start: the data directory {} is not writable: ", directory.path().display());
    assert!(reason.starts_with(&expected), "{reason}");

    let new = directory.path().join("new");
    let refused = refusal(setup(&new));
    let reason = refused.reason();
    assert!(reason.starts_with(&format!("cannot create the data directory {}: ", new.display())), "{reason}");
}

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}
