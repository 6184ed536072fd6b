//! The methods that make and remove bindings, each with a check that changes nothing.

use amqp::{Exception, FieldTable, MethodId, ReplyCode};

use super::bindings::{BindingId, BindingPlace, Destination};
use super::exchange::{ExchangeId, ExchangeKind};
use super::{ConnectionId, Exchange, Topology, headers, method};

impl Topology {
    /// `queue.bind`: makes the binding unless it is there.
    ///
    /// # Errors
    /// The default exchange (403), a missing exchange or queue (404), arguments that make no sense to the exchange (406),
    /// another connection's exclusive queue (405).
    pub fn bind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<(), Exception> {
        let (source, destination) = self.ends_of_queue_bind(queue, exchange, arguments, connection)?;
        self.add_binding(source, destination, routing_key, arguments);
        Ok(())
    }

    /// Checks a `queue.bind` and changes nothing.
    ///
    /// # Errors
    /// As [`Topology::bind_queue`].
    pub fn check_bind_queue(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<BindingPlace, Exception> {
        let (source, destination) = self.ends_of_queue_bind(queue, exchange, arguments, connection)?;
        Ok(self.place(source, destination, routing_key, arguments))
    }

    fn ends_of_queue_bind(
        &self,
        queue: &str,
        exchange: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<(ExchangeId, Destination), Exception> {
        self.refuse_default_exchange(exchange, method::QUEUE_BIND)?;
        let source = self.source(exchange, method::QUEUE_BIND)?;
        let Some(record) = self.find_queue(queue) else { return Err(self.no_queue(queue, method::QUEUE_BIND)) };
        check_arguments(self.exchanges.get(source), arguments, method::QUEUE_BIND)?;
        self.refuse_locked(record, connection, method::QUEUE_BIND)?;
        Ok((source, Destination::Queue(record.id)))
    }

    /// `queue.unbind`: removes the binding. What is not there is unbound already.
    ///
    /// # Errors
    /// The default exchange (403); a binding of another connection's exclusive queue (405).
    pub fn unbind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<(), Exception> {
        if let Some(id) = self.find_queue_binding(queue, exchange, routing_key, arguments, connection)? {
            self.unbind(id);
        }
        Ok(())
    }

    /// Checks a `queue.unbind` and changes nothing. `None`: there is no such binding.
    ///
    /// # Errors
    /// As [`Topology::unbind_queue`].
    pub fn check_unbind_queue(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<Option<BindingPlace>, Exception> {
        let found = self.find_queue_binding(queue, exchange, routing_key, arguments, connection)?;
        Ok(found.map(|id| self.place_of(id)))
    }

    fn find_queue_binding(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<Option<BindingId>, Exception> {
        self.refuse_default_exchange(exchange, method::QUEUE_UNBIND)?;
        let (Some(source), Some(record)) = (self.exchanges.find(exchange), self.find_queue(queue)) else {
            return Ok(None);
        };
        let found = self.bindings.find(source, Destination::Queue(record.id), routing_key, arguments);
        if found.is_some() {
            self.refuse_locked(record, connection, method::QUEUE_UNBIND)?;
        }
        Ok(found)
    }

    /// `exchange.bind`: makes a binding between two exchanges unless it is there. They may form circles.
    ///
    /// # Errors
    /// The default exchange at either end (403), a missing exchange (404), arguments that make no sense to the source (406).
    pub fn bind_exchange(
        &mut self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<(), Exception> {
        let (source, destination) = self.ends_of_exchange_bind(destination, source, arguments)?;
        self.add_binding(source, destination, routing_key, arguments);
        Ok(())
    }

    /// Checks an `exchange.bind` and changes nothing.
    ///
    /// # Errors
    /// As [`Topology::bind_exchange`].
    pub fn check_bind_exchange(
        &self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<BindingPlace, Exception> {
        let (source, destination) = self.ends_of_exchange_bind(destination, source, arguments)?;
        Ok(self.place(source, destination, routing_key, arguments))
    }

    fn ends_of_exchange_bind(
        &self,
        destination: &str,
        source: &str,
        arguments: &FieldTable,
    ) -> Result<(ExchangeId, Destination), Exception> {
        self.refuse_default_exchange(destination, method::EXCHANGE_BIND)?;
        self.refuse_default_exchange(source, method::EXCHANGE_BIND)?;
        let source = self.source(source, method::EXCHANGE_BIND)?;
        let Some(destination) = self.exchanges.find(destination) else {
            return Err(self.no_exchange(destination, method::EXCHANGE_BIND));
        };
        check_arguments(self.exchanges.get(source), arguments, method::EXCHANGE_BIND)?;
        Ok((source, Destination::Exchange(destination)))
    }

    /// `exchange.unbind`: removes the binding. What is not there is unbound already.
    ///
    /// # Errors
    /// The default exchange at either end (403).
    pub fn unbind_exchange(
        &mut self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<(), Exception> {
        if let Some(id) = self.find_exchange_binding(destination, source, routing_key, arguments)? {
            self.unbind(id);
        }
        Ok(())
    }

    /// Checks an `exchange.unbind` and changes nothing. `None`: there is no such binding.
    ///
    /// # Errors
    /// As [`Topology::unbind_exchange`].
    pub fn check_unbind_exchange(
        &self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<Option<BindingPlace>, Exception> {
        let found = self.find_exchange_binding(destination, source, routing_key, arguments)?;
        Ok(found.map(|id| self.place_of(id)))
    }

    fn find_exchange_binding(
        &self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<Option<BindingId>, Exception> {
        self.refuse_default_exchange(destination, method::EXCHANGE_UNBIND)?;
        self.refuse_default_exchange(source, method::EXCHANGE_UNBIND)?;
        let (Some(source), Some(destination)) = (self.exchanges.find(source), self.exchanges.find(destination)) else {
            return Ok(None);
        };
        Ok(self.bindings.find(source, Destination::Exchange(destination), routing_key, arguments))
    }

    fn source(&self, name: &str, method: MethodId) -> Result<ExchangeId, Exception> {
        self.exchanges.find(name).ok_or_else(|| self.no_exchange(name, method))
    }
}

fn check_arguments(source: &Exchange, arguments: &FieldTable, method: MethodId) -> Result<(), Exception> {
    if source.kind != ExchangeKind::Headers {
        return Ok(());
    }
    headers::check_arguments(arguments).map_err(|text| Exception::new(ReplyCode::PreconditionFailed, text, method))
}
