//! The line between two tasks: many senders, one receiver, items handed over in bulk.
//!
//! A receiver takes all that waits at once, so a lock and a wake-up are paid per batch, not per item. The line itself has no
//! limit: each user says what bounds it (a connection's unapplied bytes for a shard's inbox, the bytes of its outbox for
//! a connection's mailbox).

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// A line of items for one receiver.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    items: Vec<T>,
    waker: Option<Waker>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { items: Vec::new(), waker: None }) }
    }
}

impl<T> Mailbox<T> {
    /// Adds an item and wakes the receiver.
    pub(crate) fn send(&self, item: T) {
        let mut inner = self.inner.lock();
        inner.items.push(item);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds all of `items`, which is left empty, and wakes the receiver.
    pub(crate) fn send_all(&self, items: &mut Vec<T>) {
        if items.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.items.is_empty() {
            std::mem::swap(&mut inner.items, items);
        } else {
            inner.items.append(items);
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves all that waits into `items`, which must be empty; pending while nothing does.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>, items: &mut Vec<T>) -> Poll<()> {
        debug_assert!(items.is_empty(), "what was taken before is done");
        let mut inner = self.inner.lock();
        if inner.items.is_empty() {
            if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                inner.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut inner.items, items);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_arrive_in_order_and_in_bulk() {
        let mailbox = Mailbox::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut items = Vec::new();
        assert!(mailbox.poll_take(&mut context, &mut items).is_pending());
        mailbox.send(1);
        mailbox.send_all(&mut vec![2, 3]);
        assert!(mailbox.poll_take(&mut context, &mut items).is_ready());
        assert_eq!(items, [1, 2, 3]);
        items.clear();
        assert!(mailbox.poll_take(&mut context, &mut items).is_pending());
    }
}
