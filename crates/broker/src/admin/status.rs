//! How a node is.

use serde_json::{Value, json};

use super::Admin;

impl Admin {
    /// What is known of the node itself: an object with the names of `rabbitmqctl status --formatter json`, as far as there is something
    /// behind them.
    #[must_use]
    pub fn status(&self) -> Value {
        let broker = &self.broker;
        let settings = broker.settings();
        let resident = crate::memory::resident_bytes().unwrap_or(0);
        let vhosts = broker.directory().vhosts();
        let queues: usize = vhosts.iter().map(|vhost| vhost.read().queue_count()).sum();
        let free = broker.store().fs().free_bytes(broker.store().dir()).unwrap_or(0);
        json!({
            "pid": std::process::id(),
            "os": "Linux",
            "uptime": broker.uptime().as_secs(),
            "is_under_maintenance": false,
            "rabbitmq_version": settings.product_version,
            "product_name": "WarrenMQ",
            "product_version": env!("CARGO_PKG_VERSION"),
            "node": settings.node_name,
            "cluster_name": settings.cluster_name,
            "data_directory": settings.data_dir.display().to_string(),
            "alarms": self.alarms(),
            "memory": {"total": {"rss": resident}, "strategy": "rss"},
            "vm_memory_high_watermark_limit": settings.memory_high_watermark_bytes,
            "disk_free": free,
            "disk_free_limit": settings.disk_free_limit_bytes,
            "totals": {
                "connection_count": broker.connection_count(),
                "queue_count": queues,
                "virtual_host_count": vhosts.len(),
            },
        })
    }

    /// What publishers are blocked for: `memory`, `disk`.
    #[must_use]
    pub fn alarms(&self) -> Vec<&'static str> {
        self.broker.alarms().into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect()
    }
}
