//! The `queue` class.

use std::borrow::Cow;
use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::methods::queue::{AMQPMethod, Bind, BindOk, Declare, DeclareOk, Delete, DeleteOk, Purge, Unbind, UnbindOk};
use amqp::{AMQPValue, Exception, MethodId, ReplyCode};
use queue::{Op, QueueId};

use super::changes::{Request, check_size};
use super::channel::{Fault, Pending};
use super::exchange_methods::{bind_step, binding, exchange_argument, unbind_step};
use super::session::Session;
use crate::auth::{Permission, Resource};
use crate::metadata::{self, Claim, DeclareQueue, Earlier};
use crate::names;
use crate::topology::{Declared, QueueDeclare, QueueRecord, Topology, strip_crlf};
use crate::vhost::Vhost;

impl Session {
    pub(super) fn queue_declare(&mut self, number: u16, mut declare: Declare) -> Result<(), Fault> {
        self.add_default_type(&mut declare);
        let asked = strip_crlf(declare.queue.as_str());
        if self.declare_replies(number, &asked, &declare)? {
            return Ok(());
        }
        let server_named = asked.is_empty() && !declare.passive;
        let name: Cow<'_, str> = if server_named { names::server_named("amq.gen-").into() } else { asked };
        if !declare.passive {
            self.authorize_declare(&name, &declare)?;
        }
        let request = QueueDeclare {
            name: &name,
            server_named,
            passive: declare.passive,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            arguments: &declare.arguments,
            connection: self.handle.id,
        };
        let found = self.look_for_queue(&request)?;
        self.open(number).last_queue = Some(name.as_ref().into());
        match found {
            Found::There(record) => {
                let token = self.pend(number, Pending::Declare(Box::new(declare)));
                self.staging.op(record.shard, Op::Declared { queue: record.id, token });
            }
            Found::Made if declare.nowait => {}
            Found::Made => self.declare_ok(number, &name, 0, 0),
            Found::ToLog(op) => {
                let name = name.as_ref().into();
                self.log_change(number, op, Pending::DeclareDurable { name, declare: Box::new(declare) });
            }
            Found::InTheWay => {
                let declare = AMQPClass::Queue(AMQPMethod::Declare(declare));
                self.wait_for_metadata(number, Earlier::All, Pending::Retry(Box::new(declare)));
            }
        }
        Ok(())
    }

    /// A declare that names no type means that of the virtual host, or that of the queue that is there. Exclusive, auto-delete and transient
    /// queues are always classic ones.
    fn add_default_type(&self, declare: &mut Declare) {
        const QUEUE_TYPE: &str = "x-queue-type";
        let may_be_of_any_type = declare.durable && !declare.exclusive && !declare.auto_delete && !declare.passive;
        if !may_be_of_any_type || declare.queue.as_str().is_empty() || declare.arguments.contains_key(QUEUE_TYPE) {
            return;
        }
        let info = self.vhost().info();
        let Some(default) = info.as_deref().and_then(|info| info.default_queue_type.as_deref()) else { return };
        let topology = self.vhost().read();
        let there = topology.find_queue(&strip_crlf(declare.queue.as_str())).map(|record| record.kind.name());
        let kind = AMQPValue::LongString(there.unwrap_or(default).into());
        declare.arguments.insert(QUEUE_TYPE.into(), kind);
    }

    /// Looks for the queue of a declare. One that is not there is made, if it is to live in memory.
    fn look_for_queue(&self, request: &QueueDeclare<'_>) -> Result<Found, Exception> {
        let (vhost, broker) = (self.vhost(), &self.broker);
        // Most declares are of queues that are there: they need no write lock.
        {
            let topology = vhost.read();
            match topology.check_declare_queue(request)? {
                Declared::Existing(record) => return Ok(Found::There(record)),
                Declared::New if request.is_durable() => {
                    let op = declare_op(request);
                    check_size(&op)?;
                    check_queue_limit(vhost, &topology, request.name)?;
                    vhost.claims().make(&op);
                    return Ok(Found::ToLog(op));
                }
                Declared::New => {}
            }
        }
        vhost.change(|topology| match topology.check_declare_queue(request)? {
            Declared::Existing(record) => Ok(Found::There(record)),
            Declared::New if vhost.claims().forbid(&Claim::Queue(request.name.into())) => Ok(Found::InTheWay),
            Declared::New => {
                check_queue_limit(vhost, topology, request.name)?;
                let (id, shard) = broker.new_local_queue();
                let record = topology.create_queue(id, shard, request);
                // Under the lock: whoever finds the record later sends its ops behind this one.
                broker.send_ops(shard, vec![Op::Create { queue: id, settings: record.machine_settings() }]);
                Ok(Found::Made)
            }
        })
    }

    fn authorize_declare(&self, name: &str, declare: &Declare) -> Result<(), Fault> {
        let method = MethodId::QUEUE_DECLARE;
        self.authorize(Resource::Queue(name), Permission::Configure, method)?;
        if let Some(dead_letter_exchange) = exchange_argument(&declare.arguments, "x-dead-letter-exchange") {
            self.authorize(Resource::Queue(name), Permission::Read, method)?;
            self.authorize(Resource::Exchange(dead_letter_exchange), Permission::Write, method)?;
        }
        Ok(())
    }

    pub(super) fn declare_ok(&mut self, number: u16, name: &str, messages: u64, consumers: u32) {
        let ok = DeclareOk {
            queue: name.into(),
            message_count: u32::try_from(messages).unwrap_or(u32::MAX),
            consumer_count: consumers,
        };
        self.send(number, AMQPClass::Queue(AMQPMethod::DeclareOk(ok)));
    }

    pub(super) fn queue_bind(&mut self, number: u16, bind: &Bind) -> Result<(), Fault> {
        let method = MethodId::QUEUE_BIND;
        let name = self.queue_name(number, bind.queue.as_str(), method)?;
        let exchange = strip_crlf(bind.exchange.as_str());
        let key = self.binding_key(bind.queue.as_str(), bind.routing_key.as_str(), &name);
        self.authorize_queue_binding(&name, &exchange, &key, method)?;
        let (arguments, connection) = (&bind.arguments, self.handle.id);
        let request = Request {
            method: AMQPClass::Queue(AMQPMethod::Bind(bind.clone())),
            ok: (!bind.nowait).then_some(AMQPClass::Queue(AMQPMethod::BindOk(BindOk {}))),
            forbidden_by: Some(Claim::Unused(exchange.as_ref().into())),
        };
        let look = |topology: &Topology| {
            let place = topology.check_bind_queue(&name, &exchange, &key, arguments, connection)?;
            Ok(bind_step(place, || metadata::Op::BindQueue(binding(&name, &exchange, &key, arguments))))
        };
        self.change_topology(number, request, look, |topology| {
            topology.bind_queue(&name, &exchange, &key, arguments, connection)
        })
    }

    pub(super) fn queue_unbind(&mut self, number: u16, unbind: &Unbind) -> Result<(), Fault> {
        let method = MethodId::QUEUE_UNBIND;
        let name = self.queue_name(number, unbind.queue.as_str(), method)?;
        let exchange = strip_crlf(unbind.exchange.as_str());
        let key = self.binding_key(unbind.queue.as_str(), unbind.routing_key.as_str(), &name);
        self.authorize_queue_binding(&name, &exchange, &key, method)?;
        let (arguments, connection) = (&unbind.arguments, self.handle.id);
        let request = Request {
            method: AMQPClass::Queue(AMQPMethod::Unbind(unbind.clone())),
            ok: Some(AMQPClass::Queue(AMQPMethod::UnbindOk(UnbindOk {}))),
            forbidden_by: None,
        };
        let look = |topology: &Topology| {
            let place = topology.check_unbind_queue(&name, &exchange, &key, arguments, connection)?;
            Ok(unbind_step(place, || metadata::Op::UnbindQueue(binding(&name, &exchange, &key, arguments))))
        };
        self.change_topology(number, request, look, |topology| {
            topology.unbind_queue(&name, &exchange, &key, arguments, connection)
        })
    }

    /// With neither queue nor key named, the key is the queue's name.
    fn binding_key(&self, queue: &str, key: &str, name: &str) -> String {
        if queue.is_empty() && key.is_empty() { name.to_owned() } else { key.to_owned() }
    }

    fn authorize_queue_binding(&self, queue: &str, exchange: &str, key: &str, method: MethodId) -> Result<(), Fault> {
        if exchange.is_empty() {
            // Refused in any case, with a text of its own.
            return Ok(());
        }
        self.authorize(Resource::Queue(queue), Permission::Write, method)?;
        self.authorize(Resource::Exchange(exchange), Permission::Read, method)?;
        self.authorize_binding_key(exchange, key, method)
    }

    pub(super) fn queue_purge(&mut self, number: u16, purge: &Purge) -> Result<(), Fault> {
        let method = MethodId::QUEUE_PURGE;
        let name = self.queue_name(number, purge.queue.as_str(), method)?;
        self.authorize(Resource::Queue(&name), Permission::Read, method)?;
        let record = self.vhost().read().access_queue(&name, self.handle.id, method)?;
        let token = Some(self.pend(number, Pending::Purge { name: name.into(), nowait: purge.nowait }));
        self.staging.op(record.shard, Op::Purge { queue: record.id, token });
        Ok(())
    }

    pub(super) fn queue_delete(&mut self, number: u16, delete: &Delete) -> Result<(), Fault> {
        let method = MethodId::QUEUE_DELETE;
        let name = self.queue_name(number, delete.queue.as_str(), method)?;
        self.authorize(Resource::Queue(&name), Permission::Configure, method)?;
        let found = {
            // One look: between two of them somebody else may delete it.
            let topology = self.vhost().read();
            let access = |_: &_| topology.access_queue(&name, self.handle.id, method);
            topology.find_queue(&name).map(access).transpose()?
        };
        let Some(record) = found else {
            // Deleting what is not there is fine.
            self.delete_ok(number, delete.nowait, 0);
            return Ok(());
        };
        let token = {
            let pending = Pending::Delete { name: name.into(), nowait: delete.nowait, durable: record.durable };
            Some(self.pend(number, pending))
        };
        let (if_unused, if_empty) = (delete.if_unused, delete.if_empty);
        self.staging.op(record.shard, Op::Delete { queue: record.id, if_unused, if_empty, token });
        Ok(())
    }

    pub(super) fn delete_ok(&mut self, number: u16, nowait: bool, messages: u64) {
        if !nowait {
            self.send(number, delete_ok(messages));
        }
    }

    /// The queue that a method means: the empty name is the one declared last on the channel.
    pub(super) fn queue_name(&mut self, number: u16, name: &str, method: MethodId) -> Result<String, Fault> {
        if !name.is_empty() {
            return Ok(strip_crlf(name).into_owned());
        }
        match &self.open(number).last_queue {
            Some(last) => Ok(last.to_string()),
            None => Err(Exception::new(ReplyCode::NotFound, "no previously declared queue", method).into()),
        }
    }
}

/// Refuses a queue more than the virtual host may have. Durable ones on their way count. In a virtual host that was deleted none is made.
fn check_queue_limit(vhost: &Vhost, topology: &Topology, name: &str) -> Result<(), Exception> {
    let limit = if vhost.is_ended() { Some(0) } else { vhost.limits().max_queues };
    let Some(limit) = limit else { return Ok(()) };
    if ((topology.queue_count() + vhost.claims().queues()) as u64) < limit {
        return Ok(());
    }
    let vhost = vhost.name();
    let text = format!("cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached");
    Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::QUEUE_DECLARE))
}

/// What a declare comes to.
enum Found {
    There(Arc<QueueRecord>),
    /// It lives in memory, and was not there before.
    Made,
    /// It is durable and not there: the change that makes it, claimed.
    ToLog(metadata::Op),
    /// A durable queue of this name is on its way.
    InTheWay,
}

/// The change that makes a durable queue. Identity and shard are given when it is written.
fn declare_op(request: &QueueDeclare<'_>) -> metadata::Op {
    metadata::Op::DeclareQueue(DeclareQueue {
        id: QueueId(0),
        shard: 0,
        name: request.name.into(),
        auto_delete: request.auto_delete,
        arguments: request.arguments.clone(),
    })
}

/// `queue.delete-ok`.
pub(super) fn delete_ok(messages: u64) -> AMQPClass {
    let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
    AMQPClass::Queue(AMQPMethod::DeleteOk(DeleteOk { message_count }))
}
