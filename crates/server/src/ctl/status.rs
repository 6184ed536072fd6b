//! Answers about the node itself, in words.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::arguments::CommandLine;
use super::exit;
use super::format::cell;

/// How long a listener may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes in what `rabbitmqctl` calls a gb.
const GIGABYTE: f64 = 1e9;

/// The answer in words, or an exit code and an error.
pub(super) fn show(command: &str, node: &str, line: &CommandLine, value: &Value) -> Result<String, (u8, String)> {
    let quiet = line.has("quiet") || line.has("silent");
    let remark = |text: String| Ok(if quiet { String::new() } else { text });
    match command {
        "status" => Ok(status(value)),
        "cluster_status" => Ok(cluster_status(value)),
        "environment" => Ok(environment(value)),
        "ping" => Ok("Ping succeeded\n".to_owned()),
        "server_version" => Ok(format!("{}\n", cell(&value["rabbitmq_version"]))),
        "check_running" => remark(format!("RabbitMQ on node {node} is fully booted and running\n")),
        "is_running" => Ok(format!("RabbitMQ on node {node} is running\n")),
        "is_booting" => Ok(format!("RabbitMQ on node {node} is fully booted or stopped\n")),
        "check_local_alarms" | "check_alarms" | "alarms" => alarms(command, node, value, quiet),
        "check_port_connectivity" => connectivity(node, value, quiet),
        "check_port_listener" => {
            let port = line.arguments.first().map_or("", String::as_str);
            let listens = addresses(value).any(|address| address.port().to_string() == port);
            if listens {
                return remark(format!("A listener for port {port} is running on node {node}\n"));
            }
            Err((exit::UNAVAILABLE, format!("No listener for port {port} is active on node {node}")))
        }
        "listeners" => Ok(listeners(value)),
        _ => Ok(format!("{}\n", cell(value))),
    }
}

fn status(status: &Value) -> String {
    let text = |name: &str| cell(&status[name]);
    let gigabytes = |value: &Value| format!("{:.4} gb", value.as_f64().unwrap_or_default() / GIGABYTE);
    let mut out = String::new();
    let _ = write!(
        out,
        "Runtime\n\nOS PID: {}\nOS: {}\nUptime (seconds): {}\nIs under maintenance?: {}\nRabbitMQ version: {}\n\
         Product: {} {}\nNode name: {}\nCluster name: {}\n\nData directory\n\nNode data directory: {}\n",
        text("pid"),
        text("os"),
        text("uptime"),
        text("is_under_maintenance"),
        text("rabbitmq_version"),
        text("product_name"),
        text("product_version"),
        text("node"),
        text("cluster_name"),
        text("data_directory"),
    );
    out.push_str("\nConfig files\n\n");
    for file in status["config_files"].as_array().into_iter().flatten() {
        let _ = writeln!(out, " * {}", cell(file));
    }
    out.push_str("\nAlarms\n\n");
    let alarms = status["alarms"].as_array().map(Vec::as_slice).unwrap_or_default();
    for alarm in alarms {
        let _ = writeln!(out, "{} alarm on node {}", cell(alarm), text("node"));
    }
    if alarms.is_empty() {
        out.push_str("(none)\n");
    }
    let _ = write!(
        out,
        "\nMemory\n\nTotal memory used: {}\nCalculation strategy: rss\nMemory high watermark: {}\n\nFree Disk \
         Space\n\nLow free disk space watermark: {}\nFree disk space: {}\n",
        gigabytes(&status["memory"]["total"]["rss"]),
        gigabytes(&status["vm_memory_high_watermark_limit"]),
        gigabytes(&status["disk_free_limit"]),
        gigabytes(&status["disk_free"]),
    );
    let totals = &status["totals"];
    let _ = write!(
        out,
        "\nTotals\n\nConnection count: {}\nQueue count: {}\nVirtual host count: {}\n\nListeners\n\n{}",
        cell(&totals["connection_count"]),
        cell(&totals["queue_count"]),
        cell(&totals["virtual_host_count"]),
        listeners(status),
    );
    out
}

fn cluster_status(status: &Value) -> String {
    let node = cell(&status["node"]);
    format!(
        "Basics\n\nCluster name: {}\n\nDisk Nodes\n\n{node}\n\nRunning Nodes\n\n{node}\n\nVersions\n\n{node}: RabbitMQ {}\n\n\
         Alarms\n\n{}\n",
        cell(&status["cluster_name"]),
        cell(&status["rabbitmq_version"]),
        match cell(&status["alarms"]).as_str() {
            "[]" => "(none)".to_owned(),
            alarms => alarms.to_owned(),
        },
    )
}

/// As a list of terms, one to a line.
fn environment(settings: &Value) -> String {
    let settings = settings.as_object().into_iter().flatten();
    let lines: Vec<String> = settings
        .map(|(name, value)| match value {
            Value::String(_) => format!("      {{{name},{value}}}"),
            other => format!("      {{{name},{}}}", cell(other)),
        })
        .collect();
    format!("[{{rabbit,\n     [\n{}]}}].\n", lines.join(",\n"))
}

fn listeners(status: &Value) -> String {
    let mut out = String::new();
    for listener in status["listeners"].as_array().into_iter().flatten() {
        let part = |name: &str| cell(&listener[name]);
        let _ = writeln!(
            out,
            "Interface: {}, port: {}, protocol: {}, purpose: {}",
            part("interface"),
            part("port"),
            part("protocol"),
            part("purpose")
        );
    }
    out
}

fn alarms(command: &str, node: &str, alarms: &Value, quiet: bool) -> Result<String, (u8, String)> {
    let alarms: Vec<String> = alarms.as_array().into_iter().flatten().map(cell).collect();
    let of = if command == "check_alarms" { "cluster" } else { "local" };
    if alarms.is_empty() {
        let none = match command {
            "alarms" => format!("Node {node} reported no alarms, local or clusterwide\n"),
            "check_alarms" => format!("Node {node} reported no alarms, local or clusterwide\n"),
            _ => format!("Node {node} reported no local alarms\n"),
        };
        return Ok(if quiet { String::new() } else { none });
    }
    let lines: Vec<String> = alarms.iter().map(|alarm| format!(" {alarm} alarm on node {node}")).collect();
    if command == "alarms" {
        return Ok(format!("{}\n", lines.join("\n")));
    }
    Err((exit::UNAVAILABLE, format!("Node {node} reported the following {of} alarms:\n{}", lines.join("\n"))))
}

/// Where the node listens, as it can be reached from here.
fn addresses(status: &Value) -> impl Iterator<Item = SocketAddr> {
    let listeners = status["listeners"].as_array().into_iter().flatten();
    listeners.filter_map(|listener| {
        let address = format!("{}:{}", cell(&listener["interface"]), cell(&listener["port"]));
        let mut address: SocketAddr = address.parse().ok()?;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        Some(address)
    })
}

fn connectivity(node: &str, status: &Value, quiet: bool) -> Result<String, (u8, String)> {
    for address in addresses(status) {
        if let Err(error) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            return Err((exit::UNAVAILABLE, format!("Could not connect to the listener at {address}: {error}")));
        }
    }
    let text = format!("Successfully connected to all active listeners of node {node}\n");
    Ok(if quiet { String::new() } else { text })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(words: &[&str]) -> CommandLine {
        CommandLine::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).expect("valid")
    }

    #[test]
    fn alarms_fail_a_check_and_silence_means_none() {
        let check = |alarms: &Value, words: &[&str]| show("check_local_alarms", "a@b", &line(words), alarms);
        assert_eq!(check(&json!([]), &["check_local_alarms", "-q"]), Ok(String::new()));
        assert!(check(&json!([]), &["check_local_alarms"]).is_ok_and(|text| text.contains("no local alarms")));
        let (code, text) = check(&json!(["memory"]), &["check_local_alarms", "-q"]).expect_err("an alarm");
        assert!(code == exit::UNAVAILABLE && text.contains("memory alarm on node a@b"));
    }

    #[test]
    fn a_port_without_listener_fails_a_check() {
        let status = json!({"listeners": [{"interface": "[::]", "port": 5672}]});
        let check = |port: &str| show("check_port_listener", "a@b", &line(&["check_port_listener", port]), &status);
        assert!(check("5672").is_ok());
        assert!(check("1").is_err());
    }
}
