//! What stands before a run under load: queues and bindings, connections, consumers that are attached.

use std::sync::{Arc, PoisonError};

use amqp::methods::{basic, confirm, exchange, queue};
use amqp::{FieldTable, PropertiesBuilder};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::consumer::{Acks, Consumer, ConsumerPlan, QueueTrack};
use crate::drive::{Phase, drive};
use crate::error::Error;
use crate::link::{IntoClass as _, Link};
use crate::load::{Ended, Joined};
use crate::message::Template;
use crate::options::{Flag, LoadArgs, QueueArgs};
use crate::publisher::{Published, Publisher, PublisherPlan, PublisherShared};

/// Connections that are opened at the same time.
const OPENING: usize = 32;

/// The queues of a run and who publishes to them.
pub(crate) struct Layout {
    pub(crate) queues: Vec<String>,
    tracks: Vec<Arc<QueueTrack>>,
    /// The exchange and routing key of each publisher, and the queue, if it is one.
    pub(crate) publishers: Vec<(String, String, Option<usize>)>,
}

impl Layout {
    pub(crate) fn new(args: &LoadArgs, run: u16) -> Self {
        let queues = args.queue_names(run);
        let tracks = queues.iter().map(|_| Arc::default()).collect();
        let publishers = if args.fanout {
            (0..args.producers).map(|_| (args.exchange.clone(), String::new(), None)).collect()
        } else {
            let per_queue = |(index, name): (usize, &String)| {
                std::iter::repeat_n((String::new(), name.clone(), Some(index)), args.producers)
            };
            queues.iter().enumerate().flat_map(per_queue).collect()
        };
        Self { queues, tracks, publishers }
    }

    /// Messages that must have come, as far as publishers are done, and those that did not.
    pub(crate) fn missing(&self, published: &[Option<Published>]) -> u64 {
        let mut missing = 0;
        for (number, outcome) in published.iter().enumerate() {
            let Some(outcome) = outcome else { continue };
            let tracks = match self.publishers[number].2 {
                Some(queue) => &self.tracks[queue..=queue],
                None => &self.tracks,
            };
            for track in tracks {
                let mut track = track.lock().unwrap_or_else(PoisonError::into_inner);
                missing += track.of(number as u16).missing(outcome.sent, &outcome.excused);
            }
        }
        missing
    }
}

/// Publishers that are ready to go, with their numbers and connections.
pub(crate) type Publishers = Vec<((usize, Publisher), Link)>;

/// Opens all connections, attaches the consumers, and gives the publishers back, and consumers that are done already.
pub(crate) async fn attach_all(
    args: &LoadArgs,
    layout: &Layout,
    run: u16,
    shared: &Arc<PublisherShared>,
    phases: &watch::Receiver<Phase>,
    tasks: &mut JoinSet<Ended>,
) -> Result<(Publishers, Vec<Joined>), Error> {
    let consumers = layout.queues.len() * args.consumers;
    let (attached, mut all_attached) = mpsc::channel(consumers.max(1));
    let links = open_links(args, consumers, 1).await?;
    for (number, mut link) in links.into_iter().enumerate() {
        let queue = number / args.consumers.max(1);
        let plan = ConsumerPlan {
            run,
            consumer: number,
            queue: layout.queues[queue].clone(),
            channel: 1,
            acks: match (args.autoack, args.hold) {
                (true, _) => Acks::Auto,
                (_, true) => Acks::Hold,
                _ => Acks::Every(args.multi_ack_every),
            },
            limit: args.cmessages,
            // Publishers of another process count from 0, too.
            publishers: if args.producers == 0 { usize::from(u16::MAX) } else { layout.publishers.len() },
        };
        link.open_channel(1).await?;
        if args.qos > 0 && !args.autoack {
            let qos = basic::Qos { prefetch_count: args.qos, global: false };
            link.call(1, basic::AMQPMethod::Qos(qos).into_class()).await?;
        }
        let mut role = Consumer::new(plan, Arc::clone(shared), Arc::clone(&layout.tracks[queue]), attached.clone());
        let mut phases = phases.clone();
        tasks.spawn(async move {
            let result = drive(&mut link, &mut role, &mut phases).await;
            Ended::Consumer(match result {
                Ok(()) => link.close().await,
                error => error,
            })
        });
    }
    drop(attached);
    let (mut waiting, mut early) = (consumers, Vec::new());
    while waiting > 0 {
        tokio::select! {
            // None: who is not attached has ended, and its error is what comes next.
            Some(()) = all_attached.recv() => waiting -= 1,
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ended::Consumer(Err(error))) => return Err(error),
                // One that had all it wanted before the others were there.
                ended => early.push(ended),
            },
            else => return Err(Error::Internal("a consumer ended before it was attached")),
        }
    }
    let mut publishers = Vec::with_capacity(layout.publishers.len());
    let links = open_links(args, layout.publishers.len(), consumers + 1).await?;
    for (number, mut link) in links.into_iter().enumerate() {
        link.open_channel(1).await?;
        if args.confirm.is_some() {
            let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
            link.call(1, select.into_class()).await?;
        }
        let (exchange, key, _) = &layout.publishers[number];
        let publish = basic::Publish {
            exchange: exchange.as_str().into(),
            routing_key: key.as_str().into(),
            mandatory: args.flag.contains(&Flag::Mandatory),
            immediate: false,
        };
        let mode = if args.flag.contains(&Flag::Persistent) { 2 } else { 1 };
        let properties = PropertiesBuilder::new().set_delivery_mode(mode).build();
        let seed = u64::from(run) << 16 | number as u64;
        let template = Template::new(1, link.frame_max, publish, &properties, args.size.clone(), seed);
        let plan = PublisherPlan {
            run,
            publisher: number as u16,
            limit: args.pmessages,
            window: args.confirm.map(|window| window as usize),
            rate: args.rate,
        };
        publishers.push(((number, Publisher::new(plan, Arc::clone(shared), template)), link));
    }
    Ok((publishers, early))
}

/// Opens so many connections, some at the same time.
async fn open_links(args: &LoadArgs, count: usize, first: usize) -> Result<Vec<Link>, Error> {
    let mut links: Vec<Link> = Vec::with_capacity(count);
    while links.len() < count {
        let mut opening = JoinSet::new();
        for number in links.len()..count.min(links.len() + OPENING) {
            let (uri, options) = (args.common.uri(first + number).clone(), args.common.link_options());
            opening.spawn(async move { Link::open(&uri, &options).await });
        }
        for link in opening.join_all().await {
            links.push(link?);
        }
    }
    Ok(links)
}

/// Declares and binds.
pub(crate) async fn prepare(link: &mut Link, args: &LoadArgs, queues: &[String]) -> Result<(), Error> {
    if args.fanout && !args.predeclared {
        let declare = exchange::Declare {
            exchange: args.exchange.as_str().into(),
            kind: "fanout".into(),
            passive: false,
            durable: args.queue_args.is_durable(),
            auto_delete: false,
            internal: false,
            nowait: false,
            arguments: FieldTable::default(),
        };
        link.call(1, exchange::AMQPMethod::Declare(declare).into_class()).await?;
    }
    for name in queues {
        if !args.predeclared {
            link.call(1, queue::AMQPMethod::Declare(declaration(&args.queue_args, name)).into_class()).await?;
        }
        if args.purge {
            let purge = queue::Purge { queue: name.as_str().into(), nowait: false };
            link.call(1, queue::AMQPMethod::Purge(purge).into_class()).await?;
        }
        if args.fanout && !args.predeclared {
            let bind = queue::Bind {
                queue: name.as_str().into(),
                exchange: args.exchange.as_str().into(),
                routing_key: "".into(),
                nowait: false,
                arguments: FieldTable::default(),
            };
            link.call(1, queue::AMQPMethod::Bind(bind).into_class()).await?;
        }
    }
    Ok(())
}

/// `queue.declare` as the options say.
pub(crate) fn declaration(args: &QueueArgs, name: &str) -> queue::Declare {
    queue::Declare {
        queue: name.into(),
        passive: false,
        durable: args.is_durable(),
        exclusive: false,
        auto_delete: args.auto_delete,
        nowait: false,
        arguments: args.arguments(),
    }
}

/// `queue.delete`, whatever is in it.
pub(crate) fn deletion(name: &str) -> queue::Delete {
    queue::Delete { queue: name.into(), if_unused: false, if_empty: false, nowait: false }
}

/// Deletes what was declared.
pub(crate) async fn delete(link: &mut Link, args: &LoadArgs, queues: &[String]) -> Result<(), Error> {
    for name in queues {
        link.call(1, queue::AMQPMethod::Delete(deletion(name)).into_class()).await?;
    }
    if args.fanout {
        let delete = exchange::Delete { exchange: args.exchange.as_str().into(), if_unused: false, nowait: false };
        link.call(1, exchange::AMQPMethod::Delete(delete).into_class()).await?;
    }
    Ok(())
}
