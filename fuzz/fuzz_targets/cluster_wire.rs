//! Any bytes from another node: as a message, as the stream of a link, as a handshake, and as records that a disk gives back.

#![no_main]

use cluster::{
    MemberId,
    link::{Handshake, Inbox, Local, Role, Secret},
    wire,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (from, to) = (MemberId::of([1; 16]), MemberId::of([2; 16]));
    let bytes = bytes::Bytes::copy_from_slice(input);
    // Nothing that is read is larger than what it was read from.
    let _ = wire::decode(&bytes, from, to);
    let mut inbox = Inbox::default();
    for piece in input.chunks(7) {
        inbox.input(piece);
        while let Ok(Some((_, message))) = inbox.next_message() {
            assert!(message.len() <= input.len());
        }
    }
    for role in [Role::Connector, Role::Listener] {
        let local = Local { node: [1; 16], cluster: [3; 16], name: "n".into() };
        let mut handshake = Handshake::new(role, local, Secret::new(b"secret"), [9; 32]);
        assert!(!matches!(handshake.input(input), Ok(Some(_))), "nobody guesses the secret");
    }
    cluster::fuzz_records(input);
});
