//! Policies of a virtual host, and what their changes do to the queues and exchanges that are there.

use std::sync::Arc;

use super::{Exchange, ExchangeKind, QueueKind, QueueRecord, Topology, arguments};
use crate::policy::{Applied, Author, Policy, Target, merge};

impl Topology {
    /// Puts a policy in place of one of the same name. Answers the records of the queues for which others count now.
    pub(crate) fn set_policy(&mut self, author: Author, policy: Policy) -> Vec<Arc<QueueRecord>> {
        match author {
            Author::User => self.policies.put(policy),
            Author::Operator => self.operator_policies.put(policy),
        }
        self.apply_policies()
    }

    /// Removes a policy, if there is one of this name. Answers as [`Topology::set_policy`].
    pub(crate) fn clear_policy(&mut self, author: Author, name: &str) -> Vec<Arc<QueueRecord>> {
        match author {
            Author::User => self.policies.remove(name),
            Author::Operator => self.operator_policies.remove(name),
        }
        self.apply_policies()
    }

    pub(super) fn policies_for_queue(&self, kind: QueueKind, name: &str) -> Applied {
        let target = Target::Queue(kind);
        Applied {
            policy: self.policies.find(target, name).cloned(),
            operator: self.operator_policies.find(target, name).cloned(),
        }
    }

    /// Operators set bounds, and exchanges have nothing that could be bounded.
    pub(super) fn policies_for_exchange(&self, kind: ExchangeKind, name: &str) -> Applied {
        Applied { policy: self.policies.find(Target::Exchange(kind), name).cloned(), operator: None }
    }

    fn apply_policies(&mut self) -> Vec<Arc<QueueRecord>> {
        let mut changed = Vec::new();
        for record in self.queues() {
            let policies = self.policies_for_queue(record.kind, &record.name);
            if !policies.is_same(&record.policies) {
                let settings = merge::settings(&arguments::settings(&record.arguments), &policies.definition());
                changed.push(Arc::new(QueueRecord { policies, settings, ..QueueRecord::clone(record) }));
            }
        }
        changed.iter().for_each(|record| self.queues.replace(record));
        let of_exchange = |exchange: &Exchange| self.policies_for_exchange(exchange.kind, &exchange.name);
        let found: Vec<Applied> = self.exchanges().map(of_exchange).collect();
        let mut rerouted = false;
        for (exchange, policies) in self.exchanges.iter_mut().zip(found) {
            if !policies.is_same(&exchange.policies) {
                rerouted |= exchange.set_policies(policies);
            }
        }
        if rerouted || !changed.is_empty() {
            self.changed();
        }
        changed
    }
}
