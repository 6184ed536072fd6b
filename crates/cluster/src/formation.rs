//! How a cluster begins: nodes that know each other's names agree, once, on who the first members are.
//!
//! Every node says how it is ([`Announcement`]) to each node that it has a link to. A node without a cluster, and without having
//! agreed to one, agrees to
//!
//! - what it proposes itself: all that it hears of, itself included, if they are a majority of the configured list, all have the
//!   same list, none of them has a cluster or has agreed to one, it has the first name among them, and some time has passed for
//!   the others to come;
//! - what another has agreed to, if it is among the members there.
//!
//! It does so once: what it agreed to goes to disk ([`Action::Agree`]) before it is announced. The cluster *is* when a majority of the
//! configured list has agreed to it, and only then are groups opened ([`Action::Begin`]). Two majorities of one list
//! have a node in common, so there are never two clusters. Nodes that come later, and nodes with an empty disk, join
//! ([`Action::Join`]): the cluster adds them. A node that agreed to a cluster that can no longer be, as another one is, has to start over
//! with an empty data directory, in which there is nothing to lose ([`Action::StartOver`]).
//!
//! A node that has its groups needs none of this: the whole cluster comes back from its logs, in any order.

use std::{collections::BTreeMap, time::Duration};

use sha2::{Digest, Sha256};

use crate::{
    input::{Input, Malformed},
    member::MAX_MEMBERS,
};

/// UUID of a node or a cluster.
pub type Id = [u8; 16];

/// After a majority is there, the first one waits so long for the rest: they need not be added one by one then.
pub const GRACE: Duration = Duration::from_secs(3);

const VERSION: u8 = 1;
const MAX_NAME_BYTES: usize = 255;

/// A first member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Founder {
    /// Its name in the list.
    pub name: String,
    /// Its UUID.
    pub node: Id,
}

/// A cluster that a node agreed to: to be kept on disk as it is, with the cluster's id as the node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The cluster's id.
    pub cluster: Id,
    /// Its first members, by name.
    pub founders: Vec<Founder>,
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no cluster.
    Free,
    /// It agreed to one that it does not know to be yet.
    Agreed(Agreement),
    /// It is in one.
    Member(Id),
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Itself.
    pub founder: Founder,
    /// Of the list that it was configured with.
    pub list: [u8; 32],
    /// How far it is.
    pub standing: Standing,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Store this durably, and call [`Formation::agreed`].
    Agree(Agreement),
    /// The cluster is. Open the groups with these members, and store that this node is in it; formation is over.
    Begin(Agreement),
    /// There is a cluster. Join it: open the groups without members, and wait to be added; formation is over.
    Join(Id),
    /// Another cluster came to be than this node agreed to. Remove the data directory, which holds nothing, and start anew.
    StartOver(Id),
}

/// A node that has no groups yet.
#[derive(Debug)]
pub struct Formation {
    own: Founder,
    /// Names, sorted.
    list: Vec<String>,
    digest: [u8; 32],
    standing: Standing,
    heard: BTreeMap<Id, Announcement>,
    /// Since when a majority is there.
    majority_since: Option<Duration>,
    asked: bool,
}

impl Formation {
    /// A node with this name and id, of which the list must have the former. `agreement` is what it agreed to before it was
    /// restarted.
    pub fn new(own: Founder, mut list: Vec<String>, agreement: Option<Agreement>) -> Formation {
        if !list.contains(&own.name) {
            list.push(own.name.clone());
        }
        list.sort_unstable();
        list.dedup();
        let digest = digest(list.iter().map(String::as_bytes));
        let standing = agreement.map_or(Standing::Free, Standing::Agreed);
        Formation { own, list, digest, standing, heard: BTreeMap::new(), majority_since: None, asked: false }
    }

    /// What is to be said to every node with a link, now and whenever it changes.
    pub fn announcement(&self) -> Announcement {
        Announcement { founder: self.own.clone(), list: self.digest, standing: self.standing.clone() }
    }

    /// Another node has said how it is.
    pub fn heard(&mut self, announcement: Announcement) {
        self.heard.insert(announcement.founder.node, announcement);
    }

    /// The link to a node is gone.
    pub fn lost(&mut self, node: Id) {
        self.heard.remove(&node);
    }

    /// What was to be agreed to is on disk.
    pub fn agreed(&mut self, agreement: Agreement) {
        self.standing = Standing::Agreed(agreement);
        self.asked = false;
    }

    /// What is to be done now.
    pub fn poll(&mut self, now: Duration) -> Option<Action> {
        if let Some(cluster) = self.others(|other| match &other.standing {
            Standing::Member(cluster) => Some(*cluster),
            _ => None,
        }) {
            return Some(match &self.standing {
                Standing::Agreed(agreement) if agreement.cluster == cluster => Action::Begin(agreement.clone()),
                Standing::Agreed(_) => Action::StartOver(cluster),
                _ => Action::Join(cluster),
            });
        }
        match &self.standing {
            Standing::Agreed(agreement) => {
                let same = self.heard.values().filter(|other| {
                    matches!(&other.standing, Standing::Agreed(theirs) if theirs == agreement)
                        && self.list.contains(&other.founder.name)
                });
                let enough = self.is_majority(1 + same.count());
                enough.then(|| Action::Begin(agreement.clone()))
            }
            Standing::Free if !self.asked => {
                let agreement = self.agreement_of_another().or_else(|| self.proposal(now))?;
                self.asked = true;
                Some(Action::Agree(agreement))
            }
            _ => None,
        }
    }

    fn others<T>(&self, see: impl FnMut(&Announcement) -> Option<T>) -> Option<T> {
        self.heard.values().find_map(see)
    }

    fn is_majority(&self, count: usize) -> bool {
        count > self.list.len() / 2
    }

    fn agreement_of_another(&self) -> Option<Agreement> {
        self.others(|other| match &other.standing {
            Standing::Agreed(agreement)
                if other.list == self.digest
                    && agreement.founders.contains(&self.own)
                    && agreement.founders.iter().all(|founder| self.list.contains(&founder.name))
                    && self.is_majority(agreement.founders.len())
                    && *agreement == Agreement::of(agreement.founders.clone()) =>
            {
                Some(agreement.clone())
            }
            _ => None,
        })
    }

    fn proposal(&mut self, now: Duration) -> Option<Agreement> {
        let present: Vec<&Announcement> =
            self.heard.values().filter(|other| self.list.contains(&other.founder.name)).collect();
        let all_free = present.iter().all(|other| other.standing == Standing::Free && other.list == self.digest);
        let mut founders: Vec<Founder> = present.iter().map(|other| other.founder.clone()).collect();
        founders.push(self.own.clone());
        founders.sort_unstable();
        // Two nodes with one name: somebody has to mend the configuration.
        let unique = founders.windows(2).all(|pair| pair[0].name != pair[1].name);
        if !all_free || !unique || !self.is_majority(founders.len()) || founders.len() > MAX_MEMBERS {
            self.majority_since = None;
            return None;
        }
        let since = *self.majority_since.get_or_insert(now);
        let complete = founders.len() == self.list.len();
        let due = complete || now.saturating_sub(since) >= GRACE;
        (due && founders[0] == self.own).then(|| Agreement::of(founders))
    }
}

impl Agreement {
    /// The cluster of these founders: its id follows from them.
    fn of(mut founders: Vec<Founder>) -> Agreement {
        founders.sort_unstable();
        let parts = founders.iter().flat_map(|founder| [founder.name.as_bytes(), &founder.node[..]]);
        let digest = digest(parts);
        Agreement { cluster: storage::identity::uuid(*digest.first_chunk().expect("32 bytes")), founders }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cluster);
        out.push(u8::try_from(self.founders.len()).expect("at most MAX_MEMBERS"));
        self.founders.iter().for_each(|founder| founder.put(out));
    }

    fn get(input: &mut Input<'_>) -> Result<Agreement, Malformed> {
        let cluster = input.array()?;
        let count = usize::from(input.u8()?);
        if count > MAX_MEMBERS {
            return Err(Malformed("too many members"));
        }
        let founders = (0..count).map(|_| Founder::get(input)).collect::<Result<_, _>>()?;
        Ok(Agreement { cluster, founders })
    }

    /// For the disk.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        self.put(&mut out);
        out
    }

    /// From the disk.
    ///
    /// # Errors
    /// Bytes that are none, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Agreement, Malformed> {
        let mut input = Input::new(bytes);
        if input.u8()? != VERSION {
            return Err(Malformed("an unknown version"));
        }
        let agreement = Agreement::get(&mut input)?;
        input.end()?;
        Ok(agreement)
    }
}

impl Founder {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.node);
        let name = &self.name.as_bytes()[..self.name.len().min(MAX_NAME_BYTES)];
        out.push(u8::try_from(name.len()).expect("at most 255"));
        out.extend_from_slice(name);
    }

    fn get(input: &mut Input<'_>) -> Result<Founder, Malformed> {
        let node = input.array()?;
        let length = usize::from(input.u8()?);
        let name = std::str::from_utf8(input.take(length)?).map_err(|_| Malformed("a name that is not UTF-8"))?;
        Ok(Founder { name: name.to_owned(), node })
    }
}

impl Announcement {
    /// As a message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        self.founder.put(&mut out);
        out.extend_from_slice(&self.list);
        match &self.standing {
            Standing::Free => out.push(0),
            Standing::Agreed(agreement) => {
                out.push(1);
                agreement.put(&mut out);
            }
            Standing::Member(cluster) => {
                out.push(2);
                out.extend_from_slice(cluster);
            }
        }
        out
    }

    /// Reads a message of the node `from`, which can speak for itself alone.
    ///
    /// # Errors
    /// Bytes that are none.
    pub fn decode(bytes: &[u8], from: Id) -> Result<Announcement, Malformed> {
        let mut input = Input::new(bytes);
        if input.u8()? != VERSION {
            return Err(Malformed("an unknown version"));
        }
        let founder = Founder::get(&mut input)?;
        let list = input.array()?;
        let standing = match input.u8()? {
            0 => Standing::Free,
            1 => Standing::Agreed(Agreement::get(&mut input)?),
            2 => Standing::Member(input.array()?),
            _ => return Err(Malformed("an unknown standing")),
        };
        input.end()?;
        if founder.node != from {
            return Err(Malformed("an announcement of somebody else"));
        }
        Ok(Announcement { founder, list, standing })
    }
}

fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
