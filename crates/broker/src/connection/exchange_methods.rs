//! The `exchange` class.

use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::methods::exchange::{AMQPMethod, Bind, BindOk, Declare, DeclareOk, Delete, DeleteOk, Unbind, UnbindOk};
use amqp::{AMQPValue, FieldTable, MethodId};

use super::channel::Fault;
use super::session::Session;
use crate::auth::{Permission, Resource};
use crate::topology::{ExchangeDeclare, ExchangeKind, strip_crlf};

impl Session {
    pub(super) fn exchange_declare(&mut self, number: u16, declare: &Declare) -> Result<(), Fault> {
        let method = MethodId::EXCHANGE_DECLARE;
        let name = strip_crlf(declare.exchange.as_str());
        if !declare.passive && !name.is_empty() {
            self.authorize(Resource::Exchange(&name), Permission::Configure, method)?;
            if let Some(alternate) = exchange_argument(&declare.arguments, "alternate-exchange") {
                self.authorize(Resource::Exchange(&name), Permission::Read, method)?;
                self.authorize(Resource::Exchange(alternate), Permission::Write, method)?;
            }
        }
        let vhost = Arc::clone(self.vhost());
        vhost.change(|topology| {
            topology.declare_exchange(&ExchangeDeclare {
                name: &name,
                kind: declare.kind.as_str(),
                passive: declare.passive,
                durable: declare.durable,
                auto_delete: declare.auto_delete,
                internal: declare.internal,
                arguments: &declare.arguments,
            })
        })?;
        self.exchange_ok(number, declare.nowait, AMQPMethod::DeclareOk(DeclareOk {}));
        Ok(())
    }

    pub(super) fn exchange_delete(&mut self, number: u16, delete: &Delete) -> Result<(), Fault> {
        let name = strip_crlf(delete.exchange.as_str());
        if !name.is_empty() && !name.starts_with("amq.") {
            self.authorize(Resource::Exchange(&name), Permission::Configure, MethodId::EXCHANGE_DELETE)?;
        }
        let vhost = Arc::clone(self.vhost());
        vhost.change(|topology| topology.delete_exchange(&name, delete.if_unused))?;
        self.exchange_ok(number, delete.nowait, AMQPMethod::DeleteOk(DeleteOk {}));
        Ok(())
    }

    pub(super) fn exchange_bind(&mut self, number: u16, bind: &Bind) -> Result<(), Fault> {
        let (destination, source) = (strip_crlf(bind.destination.as_str()), strip_crlf(bind.source.as_str()));
        let key = bind.routing_key.as_str();
        self.authorize_exchange_binding(&destination, &source, key, MethodId::EXCHANGE_BIND)?;
        let vhost = Arc::clone(self.vhost());
        vhost.change(|topology| topology.bind_exchange(&destination, &source, key, &bind.arguments))?;
        self.exchange_ok(number, bind.nowait, AMQPMethod::BindOk(BindOk {}));
        Ok(())
    }

    pub(super) fn exchange_unbind(&mut self, number: u16, unbind: &Unbind) -> Result<(), Fault> {
        let (destination, source) = (strip_crlf(unbind.destination.as_str()), strip_crlf(unbind.source.as_str()));
        let key = unbind.routing_key.as_str();
        self.authorize_exchange_binding(&destination, &source, key, MethodId::EXCHANGE_UNBIND)?;
        let vhost = Arc::clone(self.vhost());
        vhost.change(|topology| topology.unbind_exchange(&destination, &source, key, &unbind.arguments))?;
        self.exchange_ok(number, unbind.nowait, AMQPMethod::UnbindOk(UnbindOk {}));
        Ok(())
    }

    fn authorize_exchange_binding(
        &self,
        destination: &str,
        source: &str,
        key: &str,
        method: MethodId,
    ) -> Result<(), Fault> {
        if destination.is_empty() || source.is_empty() {
            // Refused in any case, with a text of its own.
            return Ok(());
        }
        self.authorize(Resource::Exchange(destination), Permission::Write, method)?;
        self.authorize(Resource::Exchange(source), Permission::Read, method)?;
        self.authorize_binding_key(source, key, method)
    }

    /// A binding key of a topic exchange is checked like a topic that is read.
    pub(super) fn authorize_binding_key(&self, exchange: &str, key: &str, method: MethodId) -> Result<(), Fault> {
        let vhost = self.vhost();
        let is_topic = vhost.read().find_exchange(exchange).is_some_and(|found| found.kind == ExchangeKind::Topic);
        if is_topic {
            let (user, vhost) = (self.user().name(), vhost.name());
            self.broker.access().authorize_topic(user, vhost, exchange, key, Permission::Read, method)?;
        }
        Ok(())
    }

    /// The one question about permissions on exchanges and queues.
    pub(super) fn authorize(
        &self,
        resource: Resource<'_>,
        permission: Permission,
        method: MethodId,
    ) -> Result<(), Fault> {
        let (user, vhost) = (self.user().name(), self.vhost().name());
        Ok(self.broker.access().authorize(user, vhost, resource, permission, method)?)
    }

    fn exchange_ok(&mut self, number: u16, nowait: bool, ok: AMQPMethod) {
        if !nowait {
            self.send(number, AMQPClass::Exchange(ok));
        }
    }
}

/// An argument that names an exchange; one of another type is refused by the topology.
pub(super) fn exchange_argument<'a>(arguments: &'a FieldTable, name: &str) -> Option<&'a str> {
    match arguments.inner().get(name) {
        Some(AMQPValue::LongString(value)) => std::str::from_utf8(value.as_bytes()).ok(),
        _ => None,
    }
}
