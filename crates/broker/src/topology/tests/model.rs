//! Random changes and messages, checked against a model that keeps plain lists and tries everything.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::bindings::is_bare;
use super::*;

const EXCHANGES: [&str; 6] = ["amq.direct", "amq.topic", "x0", "x1", "x2", "x3"];
const QUEUES: [&str; 5] = ["q0", "q1", "q2", "q3", "q4"];
const KINDS: [&str; 4] = ["direct", "fanout", "topic", "headers"];
const KEYS: [&str; 10] = ["", "a", "b", "a.b", "a.*", "#", "#.b", "*.#.b", "a.b.a", "q1"];

#[derive(Clone, Debug)]
enum Op {
    DeclareExchange { name: usize, kind: usize, auto_delete: bool, alternate: Option<usize> },
    DeleteExchange { name: usize, if_unused: bool },
    DeclareQueue { name: usize },
    DeleteQueue { name: usize },
    BindQueue { queue: usize, exchange: usize, key: usize, arguments: usize },
    UnbindQueue { queue: usize, exchange: usize, key: usize, arguments: usize },
    BindExchange { destination: usize, source: usize, key: usize, arguments: usize },
    UnbindExchange { destination: usize, source: usize, key: usize, arguments: usize },
    Route { exchange: usize, keys: Vec<usize>, headers: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (x, q, k, a) = (0..EXCHANGES.len(), 0..QUEUES.len(), 0..KEYS.len(), 0..tables().len());
    let alternate = proptest::option::of(x.clone());
    prop_oneof![
        3 => (x.clone(), 0..KINDS.len(), any::<bool>(), alternate).prop_map(|(name, kind, auto_delete, alternate)| {
            Op::DeclareExchange { name, kind, auto_delete, alternate }
        }),
        1 => (x.clone(), any::<bool>()).prop_map(|(name, if_unused)| Op::DeleteExchange { name, if_unused }),
        3 => q.clone().prop_map(|name| Op::DeclareQueue { name }),
        1 => q.clone().prop_map(|name| Op::DeleteQueue { name }),
        8 => (q.clone(), x.clone(), k.clone(), a.clone()).prop_map(|(queue, exchange, key, arguments)| {
            Op::BindQueue { queue, exchange, key, arguments }
        }),
        2 => (q, x.clone(), k.clone(), a.clone()).prop_map(|(queue, exchange, key, arguments)| {
            Op::UnbindQueue { queue, exchange, key, arguments }
        }),
        4 => (x.clone(), x.clone(), k.clone(), a.clone()).prop_map(|(destination, source, key, arguments)| {
            Op::BindExchange { destination, source, key, arguments }
        }),
        1 => (x.clone(), x.clone(), k.clone(), a.clone()).prop_map(|(destination, source, key, arguments)| {
            Op::UnbindExchange { destination, source, key, arguments }
        }),
        8 => (x, proptest::collection::vec(k, 1..3), a).prop_map(|(exchange, keys, headers)| {
            Op::Route { exchange, keys, headers }
        }),
    ]
}

/// Tables that serve as arguments of bindings and as headers of messages.
fn tables() -> [FieldTable; 5] {
    [
        none(),
        table([("h", int(1))]),
        table([("x-match", text("any")), ("h", int(1)), ("g", text("x"))]),
        table([("h", AMQPValue::Double(1.0)), ("g", AMQPValue::Void)]),
        table([("x-match", text("all-with-x")), ("x-h", int(1))]),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Queue(usize),
    Exchange(usize),
}

#[derive(Debug)]
struct ModelExchange {
    kind: usize,
    auto_delete: bool,
    alternate: Option<usize>,
}

/// Lists of what is there. A binding is (source, destination, key, arguments).
#[derive(Debug, Default)]
struct Model {
    exchanges: BTreeMap<usize, ModelExchange>,
    queues: BTreeSet<usize>,
    bindings: Vec<(usize, End, usize, usize)>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self::default();
        for (name, kind) in [(0, 0), (1, 2)] {
            model.exchanges.insert(name, ModelExchange { kind, auto_delete: false, alternate: None });
        }
        model
    }

    fn is_system(name: usize) -> bool {
        name < 2
    }

    /// Removes bindings, then whatever is auto-delete and used up by that, until nothing more goes.
    fn remove_bindings(&mut self, goes: impl Fn(&(usize, End, usize, usize)) -> bool) {
        let sources: BTreeSet<usize> = self.bindings.iter().filter(|b| goes(b)).map(|b| b.0).collect();
        self.bindings.retain(|b| !goes(b));
        for source in sources {
            let used_up = !self.bindings.iter().any(|b| b.0 == source);
            if used_up && self.exchanges.get(&source).is_some_and(|x| x.auto_delete) {
                self.remove_exchange(source);
            }
        }
    }

    fn remove_exchange(&mut self, name: usize) {
        self.exchanges.remove(&name);
        self.bindings.retain(|b| b.0 != name);
        self.remove_bindings(|b| b.1 == End::Exchange(name));
    }

    fn bind(&mut self, binding: (usize, End, usize, usize)) -> bool {
        let end = match binding.1 {
            End::Queue(q) => self.queues.contains(&q),
            End::Exchange(x) => self.exchanges.contains_key(&x),
        };
        if !end || !self.exchanges.contains_key(&binding.0) {
            return false;
        }
        if !self.bindings.contains(&binding) {
            self.bindings.push(binding);
        }
        true
    }

    fn route(&self, start: usize, keys: &[usize], headers: usize) -> Vec<String> {
        let mut seen = BTreeSet::from([start]);
        let mut waiting = vec![start];
        let mut queues = BTreeSet::new();
        while let Some(name) = waiting.pop() {
            let exchange = &self.exchanges[&name];
            let mut next: Vec<End> = self
                .bindings
                .iter()
                .filter(|b| b.0 == name && keys.iter().any(|key| matches(exchange.kind, b, KEYS[*key], headers)))
                .map(|b| b.1)
                .collect();
            if next.is_empty() {
                next.extend(exchange.alternate.filter(|x| self.exchanges.contains_key(x)).map(End::Exchange));
            }
            for end in next {
                match end {
                    End::Queue(q) => _ = queues.insert(QUEUES[q].to_owned()),
                    End::Exchange(x) if seen.insert(x) => waiting.push(x),
                    End::Exchange(_) => {}
                }
            }
        }
        queues.into_iter().collect()
    }
}

fn matches(kind: usize, binding: &(usize, End, usize, usize), key: &str, headers: usize) -> bool {
    match KINDS[kind] {
        "direct" => KEYS[binding.2] == key,
        "fanout" => true,
        "topic" => topic_matches(&words(KEYS[binding.2]), &words(key)),
        _ => headers_match(binding.3, headers),
    }
}

fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

/// The definition, word for word: `#` is tried with every number of words.
fn topic_matches(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => (0..=key.len()).any(|n| topic_matches(rest, &key[n..])),
        (Some((&"*", rest)), Some((_, others))) => topic_matches(rest, others),
        (Some((word, rest)), Some((other, others))) => word == other && topic_matches(rest, others),
        _ => false,
    }
}

/// Whether the binding arguments `tables()[arguments]` match the headers `tables()[headers]`, worked out by hand.
fn headers_match(arguments: usize, headers: usize) -> bool {
    match arguments {
        0 => true,
        1 | 2 => matches!(headers, 1..=3),
        3 => matches!(headers, 2 | 3),
        _ => headers == 4,
    }
}

/// Does the op to both; panics where they differ.
fn apply(v: &mut Vhost, model: &mut Model, op: &Op) {
    let arguments = |n: &usize| tables()[*n].clone();
    match op {
        Op::DeclareExchange { name, kind, auto_delete, alternate } => {
            let with = alternate.map_or_else(none, |x| table([("alternate-exchange", text(EXCHANGES[x]))]));
            let d = ExchangeDeclare {
                auto_delete: *auto_delete,
                arguments: &with,
                ..exchange(EXCHANGES[*name], KINDS[*kind])
            };
            let accepted = match model.exchanges.get(name) {
                None => {
                    let new = ModelExchange { kind: *kind, auto_delete: *auto_delete, alternate: *alternate };
                    model.exchanges.insert(*name, new);
                    true
                }
                Some(x) => {
                    let same = (x.kind, x.auto_delete, x.alternate) == (*kind, *auto_delete, *alternate);
                    // The system's are durable, and the declares here are not.
                    same && !Model::is_system(*name)
                }
            };
            assert_eq!(v.topology.declare_exchange(&d).is_ok(), accepted, "{op:?}");
        }
        Op::DeleteExchange { name, if_unused } => {
            let in_use = *if_unused && model.bindings.iter().any(|b| b.0 == *name);
            let accepted = !Model::is_system(*name) && !in_use;
            if accepted {
                model.remove_exchange(*name);
            }
            assert_eq!(v.topology.delete_exchange(EXCHANGES[*name], *if_unused).is_ok(), accepted, "{op:?}");
        }
        Op::DeclareQueue { name } => {
            model.queues.insert(*name);
            v.queue(QUEUES[*name]);
        }
        Op::DeleteQueue { name } => {
            assert_eq!(v.topology.find_queue(QUEUES[*name]).is_some(), model.queues.remove(name), "{op:?}");
            model.remove_bindings(|b| b.1 == End::Queue(*name));
            if v.topology.find_queue(QUEUES[*name]).is_some() {
                v.delete_queue(QUEUES[*name]);
            }
        }
        Op::BindQueue { queue, exchange, key, arguments: n } => {
            let (q, x, with) = (QUEUES[*queue], EXCHANGES[*exchange], arguments(n));
            let accepted = v.topology.bind_queue(q, x, KEYS[*key], &with, ME).is_ok();
            assert_eq!(accepted, model.bind((*exchange, End::Queue(*queue), *key, *n)), "{op:?}");
        }
        Op::UnbindQueue { queue, exchange, key, arguments: n } => {
            v.unbind(QUEUES[*queue], EXCHANGES[*exchange], KEYS[*key], &arguments(n));
            let gone = (*exchange, End::Queue(*queue), *key, *n);
            model.remove_bindings(|b| *b == gone);
        }
        Op::BindExchange { destination, source, key, arguments: n } => {
            let (to, from, with) = (EXCHANGES[*destination], EXCHANGES[*source], arguments(n));
            let accepted = v.topology.bind_exchange(to, from, KEYS[*key], &with).is_ok();
            assert_eq!(accepted, model.bind((*source, End::Exchange(*destination), *key, *n)), "{op:?}");
        }
        Op::UnbindExchange { destination, source, key, arguments: n } => {
            let (to, from, with) = (EXCHANGES[*destination], EXCHANGES[*source], arguments(n));
            v.topology.unbind_exchange(to, from, KEYS[*key], &with).expect("unbinding is never refused here");
            let gone = (*source, End::Exchange(*destination), *key, *n);
            model.remove_bindings(|b| *b == gone);
        }
        Op::Route { exchange, keys, headers } => {
            let mut routes = RouteSet::new();
            let words: Vec<&str> = keys.iter().map(|key| KEYS[*key]).collect();
            let result = v.topology.route_keys(EXCHANGES[*exchange], &words, &arguments(headers), &mut routes);
            assert_eq!(result.is_ok(), model.exchanges.contains_key(exchange), "{op:?}");
            if result.is_ok() {
                assert_eq!(names(&routes), model.route(*exchange, keys, *headers), "{op:?}");
            }
        }
    }
    let listed: BTreeSet<&str> =
        v.topology.exchanges().map(|x| &*x.name).filter(|name| EXCHANGES.contains(name)).collect();
    assert_eq!(listed, model.exchanges.keys().map(|x| EXCHANGES[*x]).collect(), "exchanges after {op:?}");
    assert_eq!(v.topology.bindings().count(), model.bindings.len(), "bindings after {op:?}");
    assert_eq!(v.topology.queue_count(), model.queues.len(), "queues after {op:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn topology_does_what_the_model_does(ops in proptest::collection::vec(op(), 1..120)) {
        let (mut v, mut model) = (Vhost::new(), Model::new());
        for op in &ops {
            apply(&mut v, &mut model, op);
        }
        for name in 0..QUEUES.len() {
            apply(&mut v, &mut model, &Op::DeleteQueue { name });
        }
        for name in 2..EXCHANGES.len() {
            apply(&mut v, &mut model, &Op::DeleteExchange { name, if_unused: false });
        }
        // Left are bindings among the system's exchanges.
        for binding in model.bindings.clone() {
            let (source, End::Exchange(destination), key, arguments) = binding else { panic!("a queue is left") };
            apply(&mut v, &mut model, &Op::UnbindExchange { destination, source, key, arguments });
        }
        prop_assert!(is_bare(&v.topology));
    }

    #[test]
    fn topic_matches_what_the_definition_matches(
        patterns in proptest::collection::vec("([ab*#]?\\.){0,5}[ab*#]?", 1..12),
        removed in 0..12_usize,
        keys in proptest::collection::vec("([ab]?\\.){0,6}[abc]?", 1..12),
    ) {
        let mut v = Vhost::new();
        let mut bound: BTreeSet<&String> = patterns.iter().collect();
        for pattern in &bound {
            v.queue(&format!("[{pattern}]"));
            v.bind(&format!("[{pattern}]"), "amq.topic", pattern, &none());
        }
        if let Some(pattern) = patterns.get(removed) {
            v.unbind(&format!("[{pattern}]"), "amq.topic", pattern, &none());
            bound.remove(pattern);
        }
        for key in &keys {
            let expected: BTreeSet<String> = bound
                .iter()
                .filter(|pattern| topic_matches(&words(pattern), &words(key)))
                .map(|pattern| format!("[{pattern}]"))
                .collect();
            prop_assert_eq!(BTreeSet::from_iter(v.route("amq.topic", key)), expected, "{}", key);
        }
    }
}
