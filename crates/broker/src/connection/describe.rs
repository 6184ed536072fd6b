//! What is open on a connection, for listings.

use super::handle::{ChannelDescription, ConsumerDescription, Description, Limiter};
use super::session::Session;

impl Session {
    /// All channels and consumers.
    pub(super) fn describe(&self) -> Description {
        let mut channels: Vec<ChannelDescription> = self
            .channels
            .iter()
            .map(|(&number, channel)| ChannelDescription {
                number,
                confirm: channel.confirms.is_some(),
                transactional: channel.transaction.is_some(),
                prefetch: channel.prefetch,
                global_prefetch: channel.limiter.as_deref().map_or(0, Limiter::limit),
                unacked: channel.unacked.iter().count(),
                uncommitted_publishes: channel.transaction.as_ref().map_or(0, |tx| tx.publishes.len()),
                uncommitted_acks: channel
                    .transaction
                    .as_ref()
                    .map_or(0, |tx| tx.settled.iter().map(|(_, settled)| settled.len()).sum()),
                unconfirmed: channel.confirms.as_ref().map_or(0, |confirms| confirms.unconfirmed()),
                consumers: channel.consumers.len(),
            })
            .collect();
        channels.sort_unstable_by_key(|channel| channel.number);
        let mut locals: Vec<_> = self.consumers.iter().collect();
        locals.sort_unstable_by_key(|(local, _)| **local);
        let consumers = locals
            .into_iter()
            .map(|(_, consumer)| ConsumerDescription {
                channel: consumer.channel,
                queue: consumer.queue,
                tag: consumer.tag.clone(),
                no_ack: consumer.no_ack,
                exclusive: consumer.exclusive,
                prefetch: consumer.prefetch,
                arguments: consumer.arguments.clone(),
            })
            .collect();
        Description { blocked: self.blocked.is_some(), channels, consumers }
    }
}
