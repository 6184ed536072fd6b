//! Names that changes on their way to the log depend on.
//!
//! A change of something durable is checked when it is asked for and takes effect when it is in the log. In between nothing in memory may
//! come into being that the change would then find in its way, since after a restart it would not: the outcome would be another. So
//! whoever asks claims the name, and whoever wants to make something in memory that a claim forbids waits until the change has taken
//! effect, and looks again.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::op::Op;

/// What nobody may do while a change is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    /// Make a queue of this name: a durable one is being declared.
    Queue(Box<str>),
    /// Make an exchange of this name: a durable one is being declared.
    Exchange(Box<str>),
    /// Bind something to the exchange of this name: it is being deleted because it is unused.
    Unused(Box<str>),
}

impl Claim {
    /// What must be claimed for a change. The same is given back when it takes effect.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        match op {
            Op::DeclareQueue(declare) => Some(Self::Queue(declare.name.clone())),
            Op::DeclareExchange { name, .. } => Some(Self::Exchange(name.clone())),
            Op::DeleteExchange { name, if_unused: true } => Some(Self::Unused(name.clone())),
            _ => None,
        }
    }
}

/// The claims in a virtual host, each with how many changes made it. Made and looked at under the topology's lock, so that a check and
/// what follows from it are one step.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<Claim, u32>>);

impl Claims {
    /// Claims what a change needs.
    pub(crate) fn make(&self, op: &Op) {
        if let Some(claim) = Claim::of(op) {
            *self.0.lock().entry(claim).or_default() += 1;
        }
    }

    /// Gives back what a change claimed. Nothing, if that was in a virtual host of the same name that was deleted meanwhile.
    pub(crate) fn release(&self, op: &Op) {
        let Some(claim) = Claim::of(op) else { return };
        let mut claims = self.0.lock();
        let Some(count) = claims.get_mut(&claim) else { return };
        *count -= 1;
        if *count == 0 {
            claims.remove(&claim);
        }
    }

    /// Whether a change on its way forbids it.
    pub(crate) fn forbid(&self, claim: &Claim) -> bool {
        self.0.lock().contains_key(claim)
    }

    /// How many queues are being declared, at most.
    pub(crate) fn queues(&self) -> usize {
        let claims = self.0.lock();
        claims.keys().filter(|claim| matches!(claim, Claim::Queue(_))).count()
    }

    /// Whether an exchange is being deleted because it is unused.
    pub(crate) fn any_unused(&self) -> bool {
        self.0.lock().keys().any(|claim| matches!(claim, Claim::Unused(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_until_the_last_change_has_taken_effect() {
        let claims = Claims::default();
        let op = Op::DeleteExchange { name: "x".into(), if_unused: true };
        claims.make(&op);
        claims.make(&op);
        claims.make(&Op::DeleteExchange { name: "y".into(), if_unused: false });
        claims.release(&op);
        assert!(claims.forbid(&Claim::Unused("x".into())) && claims.any_unused());
        assert!(!claims.forbid(&Claim::Unused("y".into())) && !claims.forbid(&Claim::Exchange("x".into())));
        claims.release(&op);
        assert!(!claims.any_unused());
    }
}
