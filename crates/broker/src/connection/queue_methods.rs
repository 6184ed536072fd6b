//! The `queue` class.

use std::borrow::Cow;
use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::methods::queue::{AMQPMethod, Bind, BindOk, Declare, DeclareOk, Delete, Purge, Unbind, UnbindOk};
use amqp::{Exception, MethodId, ReplyCode};
use queue::{Op, Settings};

use super::channel::{Fault, Pending};
use super::exchange_methods::exchange_argument;
use super::session::Session;
use crate::auth::{Permission, Resource};
use crate::names;
use crate::topology::{Declared, QueueDeclare, QueueRecord, strip_crlf};

impl Session {
    pub(super) fn queue_declare(&mut self, number: u16, declare: Declare) -> Result<(), Fault> {
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
        let vhost = Arc::clone(self.vhost());
        let broker = Arc::clone(&self.broker);
        // Most declares are of queues that are there: they need no write lock.
        let looked_up = vhost.read().check_declare_queue(&request)?;
        let declared = match looked_up {
            Declared::Existing(record) => Declared::Existing(record),
            Declared::New => vhost.change(|topology| {
                let declared = topology.check_declare_queue(&request)?;
                if matches!(declared, Declared::New) {
                    let (id, shard) = broker.new_queue();
                    let record = topology.create_queue(id, shard, &request);
                    // Under the lock: whoever finds the record later sends its ops behind this one.
                    let create = Op::Create { queue: id, settings: machine_settings(&record) };
                    broker.send_ops(shard, vec![create]);
                }
                Ok::<_, Exception>(declared)
            })?,
        };
        self.open(number).last_queue = Some(name.as_ref().into());
        match declared {
            Declared::New => {
                if !declare.nowait {
                    self.declare_ok(number, &name, 0, 0);
                }
            }
            Declared::Existing(record) => {
                let token = self.pend(number, Pending::Declare(Box::new(declare)));
                self.staging.op(record.shard, Op::Count { queue: record.id, token });
            }
        }
        Ok(())
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
        let (vhost, connection) = (Arc::clone(self.vhost()), self.handle.id);
        vhost.change(|topology| topology.bind_queue(&name, &exchange, &key, &bind.arguments, connection))?;
        if !bind.nowait {
            self.send(number, AMQPClass::Queue(AMQPMethod::BindOk(BindOk {})));
        }
        Ok(())
    }

    pub(super) fn queue_unbind(&mut self, number: u16, unbind: &Unbind) -> Result<(), Fault> {
        let method = MethodId::QUEUE_UNBIND;
        let name = self.queue_name(number, unbind.queue.as_str(), method)?;
        let exchange = strip_crlf(unbind.exchange.as_str());
        let key = self.binding_key(unbind.queue.as_str(), unbind.routing_key.as_str(), &name);
        self.authorize_queue_binding(&name, &exchange, &key, method)?;
        let (vhost, connection) = (Arc::clone(self.vhost()), self.handle.id);
        vhost.change(|topology| topology.unbind_queue(&name, &exchange, &key, &unbind.arguments, connection))?;
        self.send(number, AMQPClass::Queue(AMQPMethod::UnbindOk(UnbindOk {})));
        Ok(())
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
        if self.vhost().read().find_queue(&name).is_none() {
            // Deleting what is not there is fine.
            self.delete_ok(number, delete.nowait, 0);
            return Ok(());
        }
        let record = self.vhost().read().access_queue(&name, self.handle.id, method)?;
        let token = Some(self.pend(number, Pending::Delete { name: name.into(), nowait: delete.nowait }));
        let (if_unused, if_empty) = (delete.if_unused, delete.if_empty);
        self.staging.op(record.shard, Op::Delete { queue: record.id, if_unused, if_empty, token });
        Ok(())
    }

    pub(super) fn delete_ok(&mut self, number: u16, nowait: bool, messages: u64) {
        if !nowait {
            let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
            let ok = amqp::methods::queue::DeleteOk { message_count };
            self.send(number, AMQPClass::Queue(AMQPMethod::DeleteOk(ok)));
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

fn machine_settings(record: &QueueRecord) -> Settings {
    Settings { auto_delete: record.auto_delete, single_active_consumer: record.settings.single_active_consumer }
}
