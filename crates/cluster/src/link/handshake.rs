//! Who is at the other end, and does it know the cluster's secret? The secret itself is never sent.
//!
//! ```text
//! connector                              listener
//!   hello: versions, node, cluster, nonce ──▶
//!                          ◀── hello
//!   proof: HMAC(secret, 0, both hellos)   ──▶  checks it first
//!                          ◀── proof: HMAC(secret, 1, both hellos)
//! ```
//!
//! A proof covers both hellos with both nonces, so it is of no use in another handshake, nor in the other direction. A listener
//! shows its proof only to who has shown one; a connector shows its own to whom it chose to connect to. A weak secret can
//! be guessed from a proof: use a long random one. What follows on the link is neither encrypted nor signed; who fears the
//! network between the nodes puts TLS below.

use std::{collections::VecDeque, fmt};

use bytes::Bytes;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{
    input::{Input, Malformed},
    wire::WIRE_VERSION,
};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"WRNMQLNK";
/// Longest name of a node.
const MAX_NAME_BYTES: usize = 255;
/// Longest message of a handshake: nobody is known yet, so nobody gets more memory than this.
const MAX_HANDSHAKE_BYTES: usize = 512;
/// The oldest encoding that this release speaks.
const OLDEST_VERSION: u16 = 1;

const HELLO: u8 = 1;
const PROOF: u8 = 2;
const REFUSED: u8 = 3;

/// What all nodes of a cluster know, and nobody else.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// From the contents of the secret file, without the line end.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.trim_ascii_end().to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which side one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Made the connection.
    Connector,
    /// Accepted it.
    Listener,
}

/// This node.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its UUID.
    pub node: [u8; 16],
    /// Its cluster; zeros if it has none yet.
    pub cluster: [u8; 16],
    /// Its name, for people; at most 255 bytes.
    pub name: String,
}

/// The other end, proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Its UUID.
    pub node: [u8; 16],
    /// Its cluster; zeros if it has none yet.
    pub cluster: [u8; 16],
    /// Its name.
    pub name: String,
    /// The encoding that both speak.
    pub version: u16,
    /// What came behind the handshake: the first bytes for [`crate::link::Inbox`].
    pub rest: Bytes,
}

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end is no node, or of a release that speaks otherwise.
    #[error("the other end does not speak the protocol of the nodes: {0}")]
    Protocol(#[from] Malformed),
    /// The secrets differ.
    #[error("the other end does not know this cluster's secret")]
    Secret,
    /// The other end refused this node's proof, or its cluster.
    #[error("the other end refused this node: other secret, or other cluster")]
    Refused,
    /// It belongs to another cluster.
    #[error("the other end belongs to another cluster")]
    OtherCluster,
    /// No common version.
    #[error("the other end speaks versions {oldest} to {newest}, this node {OLDEST_VERSION} to {WIRE_VERSION}")]
    Version {
        /// Its oldest.
        oldest: u16,
        /// Its newest.
        newest: u16,
    },
    /// This node reached itself.
    #[error("this is the node itself")]
    Itself,
}

#[derive(Clone, Debug)]
struct Hello {
    node: [u8; 16],
    cluster: [u8; 16],
    name: String,
    version: u16,
    bytes: Vec<u8>,
}

/// A handshake under way.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    local: Local,
    secret: Secret,
    own_hello: Vec<u8>,
    peer: Option<Hello>,
    input: Vec<u8>,
    output: VecDeque<Bytes>,
    ended: bool,
}

impl Handshake {
    /// Begins a handshake. The nonce is random, and never used again.
    pub fn new(role: Role, local: Local, secret: Secret, nonce: [u8; NONCE_BYTES]) -> Handshake {
        let own_hello = encode_hello(&local, &nonce);
        let mut handshake = Handshake {
            role,
            local,
            secret,
            own_hello,
            peer: None,
            input: Vec::new(),
            output: VecDeque::new(),
            ended: false,
        };
        if role == Role::Connector {
            handshake.say(HELLO, &handshake.own_hello.clone());
        }
        handshake
    }

    /// What is to be sent now.
    pub fn output(&mut self) -> Option<Bytes> {
        self.output.pop_front()
    }

    /// Takes what came from the other end. `Some`: both ends are proven; send what [`Handshake::output`] still has, then the
    /// link is open.
    ///
    /// # Errors
    /// There will be no link: send what [`Handshake::output`] has, and close the connection.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Option<Established>, HandshakeError> {
        if self.ended {
            return Err(Malformed("bytes after a failed handshake").into());
        }
        let result = self.take(bytes);
        if let Err(error) = &result {
            self.ended = true;
            if *error != HandshakeError::Refused {
                self.say(REFUSED, &[]);
            }
        }
        result
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Option<Established>, HandshakeError> {
        self.input.extend_from_slice(bytes);
        loop {
            let Some(head) = self.input.first_chunk::<3>() else { return Ok(None) };
            let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
            let kind = head[2];
            if length > MAX_HANDSHAKE_BYTES {
                return Err(Malformed("a handshake that is too long").into());
            }
            if self.input.len() < 3 + length {
                return Ok(None);
            }
            let rest = self.input.split_off(3 + length);
            let message = std::mem::replace(&mut self.input, rest).split_off(3);
            if let Some(established) = self.message(kind, &message)? {
                self.ended = true;
                return Ok(Some(established));
            }
        }
    }

    fn message(&mut self, kind: u8, message: &[u8]) -> Result<Option<Established>, HandshakeError> {
        match (kind, self.peer.clone()) {
            (REFUSED, _) => Err(HandshakeError::Refused),
            (HELLO, None) => {
                let peer = decode_hello(message)?;
                if peer.node == self.local.node {
                    return Err(HandshakeError::Itself);
                }
                let zero = [0; 16];
                if peer.cluster != zero && self.local.cluster != zero && peer.cluster != self.local.cluster {
                    return Err(HandshakeError::OtherCluster);
                }
                self.peer = Some(peer);
                match self.role {
                    Role::Listener => self.say(HELLO, &self.own_hello.clone()),
                    Role::Connector => self.say_proof(),
                }
                Ok(None)
            }
            (PROOF, Some(peer)) => {
                let theirs = match self.role {
                    Role::Listener => Role::Connector,
                    Role::Connector => Role::Listener,
                };
                // Compared in constant time.
                self.mac(theirs).verify_slice(message).map_err(|_| HandshakeError::Secret)?;
                if self.role == Role::Listener {
                    self.say_proof();
                }
                let Hello { node, cluster, name, version, .. } = peer;
                let rest = std::mem::take(&mut self.input).into();
                Ok(Some(Established { node, cluster, name, version, rest }))
            }
            _ => Err(Malformed("a handshake out of order").into()),
        }
    }

    fn say(&mut self, kind: u8, message: &[u8]) {
        let length = u16::try_from(message.len()).expect("messages of a handshake are short");
        let bytes = [&length.to_le_bytes()[..], &[kind], message].concat();
        self.output.push_back(bytes.into());
    }

    fn say_proof(&mut self) {
        let proof = self.mac(self.role).finalize().into_bytes();
        debug_assert_eq!(proof.len(), PROOF_BYTES);
        self.say(PROOF, &proof);
    }

    /// What a side proves: that it knows the secret, in this handshake, on this side.
    fn mac(&self, side: Role) -> Hmac<Sha256> {
        let peer = self.peer.as_ref().map_or(&[][..], |peer| &peer.bytes);
        let (connector, listener) = match self.role {
            Role::Connector => (&self.own_hello[..], peer),
            Role::Listener => (peer, &self.own_hello[..]),
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret.0).expect("a key of any length will do");
        mac.update(b"warrenmq link 1");
        mac.update(&[u8::from(side == Role::Listener)]);
        for hello in [connector, listener] {
            mac.update(&(hello.len() as u64).to_le_bytes());
            mac.update(hello);
        }
        mac
    }
}

fn encode_hello(local: &Local, nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
    let mut name = local.name.as_bytes();
    if name.len() > MAX_NAME_BYTES {
        name = &[];
    }
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&OLDEST_VERSION.to_le_bytes());
    out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
    out.extend_from_slice(&local.node);
    out.extend_from_slice(&local.cluster);
    out.extend_from_slice(nonce);
    out.push(u8::try_from(name.len()).expect("at most 255"));
    out.extend_from_slice(name);
    out
}

fn decode_hello(bytes: &[u8]) -> Result<Hello, HandshakeError> {
    let mut input = Input::new(bytes);
    if input.array::<8>()? != MAGIC {
        return Err(Malformed("not a node").into());
    }
    let (oldest, newest) = (input.u16()?, input.u16()?);
    let version = newest.min(WIRE_VERSION);
    if version < oldest.max(OLDEST_VERSION) {
        return Err(HandshakeError::Version { oldest, newest });
    }
    let (node, cluster) = (input.array()?, input.array()?);
    input.array::<NONCE_BYTES>()?;
    let length = usize::from(input.u8()?);
    let name = std::str::from_utf8(input.take(length)?).map_err(|_| Malformed("a name that is not UTF-8"))?;
    // A later version may say more.
    Ok(Hello { node, cluster, name: name.to_owned(), version, bytes: bytes.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(id: u8, cluster: u8) -> Local {
        Local { node: [id; 16], cluster: [cluster; 16], name: format!("node-{id}") }
    }

    fn side(role: Role, id: u8, cluster: u8, secret: &str) -> Handshake {
        Handshake::new(role, local(id, cluster), Secret::new(secret.as_bytes()), [id; NONCE_BYTES])
    }

    type Outcome = Result<Option<Established>, HandshakeError>;

    /// Both sides talk, in pieces of `piece` bytes, until nobody has anything to say.
    fn talk(connector: &mut Handshake, listener: &mut Handshake, piece: usize) -> (Outcome, Outcome) {
        let (mut a, mut b) = (Ok(None), Ok(None));
        loop {
            let mut quiet = true;
            while let Some(bytes) = connector.output() {
                quiet = false;
                bytes.chunks(piece).for_each(|piece| {
                    if let Ok(None) = b {
                        b = listener.input(piece)
                    }
                });
            }
            while let Some(bytes) = listener.output() {
                quiet = false;
                bytes.chunks(piece).for_each(|piece| {
                    if let Ok(None) = a {
                        a = connector.input(piece)
                    }
                });
            }
            if quiet {
                return (a, b);
            }
        }
    }

    #[test]
    fn both_ends_know_each_other_however_the_bytes_come() {
        for piece in [1, 7, 1000] {
            let (mut connector, mut listener) = (side(Role::Connector, 1, 9, "s"), side(Role::Listener, 2, 0, "s\n"));
            let (a, b) = talk(&mut connector, &mut listener, piece);
            let (a, b) = (a.unwrap().unwrap(), b.unwrap().unwrap());
            assert_eq!((a.node, a.name.as_str(), a.cluster, a.version), ([2; 16], "node-2", [0; 16], WIRE_VERSION));
            assert_eq!((b.node, b.name.as_str(), b.cluster, b.version), ([1; 16], "node-1", [9; 16], WIRE_VERSION));
        }
    }

    #[test]
    fn without_the_secret_there_is_no_link() {
        let (mut connector, mut listener) = (side(Role::Connector, 1, 9, "good"), side(Role::Listener, 2, 9, "bad"));
        let (a, b) = talk(&mut connector, &mut listener, 1000);
        assert_eq!((a, b), (Err(HandshakeError::Refused), Err(HandshakeError::Secret)));
    }

    #[test]
    fn a_listener_proves_nothing_to_a_stranger() {
        let mut listener = side(Role::Listener, 2, 9, "secret");
        let mut stranger = side(Role::Connector, 1, 9, "guess");
        listener.input(&stranger.output().unwrap()).unwrap();
        stranger.input(&listener.output().unwrap()).unwrap();
        assert_eq!(listener.input(&stranger.output().unwrap()), Err(HandshakeError::Secret));
        assert_eq!(listener.output().unwrap()[2], REFUSED);
        assert_eq!(listener.output(), None);
    }

    #[test]
    fn a_proof_sent_back_is_none() {
        let mut connector = side(Role::Connector, 1, 9, "secret");
        let hello = connector.output().unwrap();
        // A mirror with another node's id.
        let mut mirrored = hello.to_vec();
        mirrored[3 + 12..3 + 28].fill(7);
        connector.input(&mirrored).unwrap();
        let proof = connector.output().unwrap();
        assert_eq!(connector.input(&proof), Err(HandshakeError::Secret));
    }

    #[test]
    fn nodes_of_other_clusters_and_the_node_itself_are_refused() {
        let (mut connector, mut listener) = (side(Role::Connector, 1, 8, "s"), side(Role::Listener, 2, 9, "s"));
        assert_eq!(talk(&mut connector, &mut listener, 1000).1, Err(HandshakeError::OtherCluster));
        let (mut connector, mut listener) = (side(Role::Connector, 1, 8, "s"), side(Role::Listener, 1, 8, "s"));
        assert_eq!(talk(&mut connector, &mut listener, 1000).1, Err(HandshakeError::Itself));
    }

    #[test]
    fn what_is_not_a_handshake_is_refused_early() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0xff, 0xff, 1], &[1, 0, 9, 0], &[0, 0, PROOF]] {
            assert!(side(Role::Listener, 2, 9, "s").input(bytes).is_err(), "{bytes:?}");
        }
    }
}
