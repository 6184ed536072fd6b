//! The `exchange` class.

use amqp::methods::AMQPClass;
use amqp::methods::exchange::{AMQPMethod, Bind, BindOk, Declare, DeclareOk, Delete, DeleteOk, Unbind, UnbindOk};
use amqp::{AMQPValue, FieldTable, MethodId};

use super::changes::{Request, Step};
use super::channel::Fault;
use super::session::Session;
use crate::auth::{Permission, Resource};
use crate::metadata::{Binding, Claim, Op};
use crate::topology::{BindingPlace, ExchangeDeclare, ExchangeKind, Presence, Topology, strip_crlf};

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
        let asked = ExchangeDeclare {
            name: &name,
            kind: declare.kind.as_str(),
            passive: declare.passive,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            arguments: &declare.arguments,
        };
        let request = Request {
            method: AMQPClass::Exchange(AMQPMethod::Declare(declare.clone())),
            ok: ok(declare.nowait, AMQPMethod::DeclareOk(DeclareOk {})),
            forbidden_by: Some(Claim::Exchange(name.as_ref().into())),
        };
        let look = |topology: &Topology| {
            Ok(match (topology.check_declare_exchange(&asked)?, ExchangeKind::from_name(asked.kind)) {
                (Presence::Missing, Some(kind)) if asked.durable => Step::Durable(Op::DeclareExchange {
                    name: asked.name.into(),
                    kind,
                    auto_delete: asked.auto_delete,
                    internal: asked.internal,
                    arguments: asked.arguments.clone(),
                }),
                (Presence::Missing, _) => Step::InMemory,
                (Presence::There, _) => Step::Nothing,
            })
        };
        self.change_topology(number, request, look, |topology| topology.declare_exchange(&asked))
    }

    pub(super) fn exchange_delete(&mut self, number: u16, delete: &Delete) -> Result<(), Fault> {
        let name = strip_crlf(delete.exchange.as_str());
        if !name.is_empty() && !name.starts_with("amq.") {
            self.authorize(Resource::Exchange(&name), Permission::Configure, MethodId::EXCHANGE_DELETE)?;
        }
        let if_unused = delete.if_unused;
        let request = Request {
            method: AMQPClass::Exchange(AMQPMethod::Delete(delete.clone())),
            ok: ok(delete.nowait, AMQPMethod::DeleteOk(DeleteOk {})),
            forbidden_by: None,
        };
        let look = |topology: &Topology| {
            Ok(match topology.check_delete_exchange(&name, if_unused)? {
                Presence::Missing => Step::Nothing,
                Presence::There if topology.find_exchange(&name).is_some_and(|exchange| exchange.durable) => {
                    Step::Durable(Op::DeleteExchange { name: name.as_ref().into(), if_unused })
                }
                Presence::There => Step::InMemory,
            })
        };
        self.change_topology(number, request, look, |topology| topology.delete_exchange(&name, if_unused))
    }

    pub(super) fn exchange_bind(&mut self, number: u16, bind: &Bind) -> Result<(), Fault> {
        let (destination, source) = (strip_crlf(bind.destination.as_str()), strip_crlf(bind.source.as_str()));
        let key = bind.routing_key.as_str();
        self.authorize_exchange_binding(&destination, &source, key, MethodId::EXCHANGE_BIND)?;
        let request = Request {
            method: AMQPClass::Exchange(AMQPMethod::Bind(bind.clone())),
            ok: ok(bind.nowait, AMQPMethod::BindOk(BindOk {})),
            forbidden_by: Some(Claim::Unused(source.as_ref().into())),
        };
        let look = |topology: &Topology| {
            let place = topology.check_bind_exchange(&destination, &source, key, &bind.arguments)?;
            Ok(bind_step(place, || Op::BindExchange(binding(&destination, &source, key, &bind.arguments))))
        };
        self.change_topology(number, request, look, |topology| {
            topology.bind_exchange(&destination, &source, key, &bind.arguments)
        })
    }

    pub(super) fn exchange_unbind(&mut self, number: u16, unbind: &Unbind) -> Result<(), Fault> {
        let (destination, source) = (strip_crlf(unbind.destination.as_str()), strip_crlf(unbind.source.as_str()));
        let key = unbind.routing_key.as_str();
        self.authorize_exchange_binding(&destination, &source, key, MethodId::EXCHANGE_UNBIND)?;
        let request = Request {
            method: AMQPClass::Exchange(AMQPMethod::Unbind(unbind.clone())),
            ok: ok(unbind.nowait, AMQPMethod::UnbindOk(UnbindOk {})),
            forbidden_by: None,
        };
        let look = |topology: &Topology| {
            let place = topology.check_unbind_exchange(&destination, &source, key, &unbind.arguments)?;
            Ok(unbind_step(place, || Op::UnbindExchange(binding(&destination, &source, key, &unbind.arguments))))
        };
        self.change_topology(number, request, look, |topology| {
            topology.unbind_exchange(&destination, &source, key, &unbind.arguments)
        })
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
}

fn ok(nowait: bool, ok: AMQPMethod) -> Option<AMQPClass> {
    (!nowait).then_some(AMQPClass::Exchange(ok))
}

/// What a bind is to do.
pub(super) fn bind_step(place: BindingPlace, op: impl FnOnce() -> Op) -> Step {
    match place {
        BindingPlace { presence: Presence::There, .. } => Step::Nothing,
        BindingPlace { durable: true, .. } => Step::Durable(op()),
        BindingPlace { durable: false, .. } => Step::InMemory,
    }
}

/// What an unbind is to do.
pub(super) fn unbind_step(place: Option<BindingPlace>, op: impl FnOnce() -> Op) -> Step {
    match place {
        None => Step::Nothing,
        Some(BindingPlace { durable: true, .. }) => Step::Durable(op()),
        Some(BindingPlace { durable: false, .. }) => Step::InMemory,
    }
}

/// A binding for a change.
pub(super) fn binding(destination: &str, source: &str, key: &str, arguments: &FieldTable) -> Binding {
    Binding {
        destination: destination.into(),
        source: source.into(),
        routing_key: key.into(),
        arguments: arguments.clone(),
    }
}

/// An argument that names an exchange; one of another type is refused by the topology.
pub(super) fn exchange_argument<'a>(arguments: &'a FieldTable, name: &str) -> Option<&'a str> {
    match arguments.inner().get(name) {
        Some(AMQPValue::LongString(value)) => std::str::from_utf8(value.as_bytes()).ok(),
        _ => None,
    }
}
