//! Where messages go.

use super::*;

const PUBLISH: (u16, u16) = (60, 40);

#[test]
fn default_exchange_routes_by_queue_name() {
    let mut v = Vhost::new();
    v.queue("q");
    assert_eq!(v.route("", "q"), ["q"]);
    assert_eq!(v.route("", "nope"), Vec::<String>::new());
}

#[test]
fn missing_and_internal_exchanges_take_no_publish() {
    let mut v = Vhost::new();
    v.queue("q");
    let d = ExchangeDeclare { internal: true, ..exchange("probe.int", "fanout") };
    v.topology.declare_exchange(&d).expect("declared");
    v.bind("q", "probe.int", "", &none());
    let mut routes = RouteSet::new();
    let text = "NOT_FOUND - no exchange 'probe.nope' in vhost '/'";
    refused(v.topology.route("probe.nope", "k", &NoHeaders, &mut routes), 404, text, PUBLISH);
    let text = "ACCESS_REFUSED - cannot publish to internal exchange 'probe.int' in vhost '/'";
    refused(v.topology.route("probe.int", "k", &NoHeaders, &mut routes), 403, text, PUBLISH);
    assert!(routes.is_empty());

    v.topology.route_internally("probe.nope", &["k"], &NoHeaders, &mut routes);
    assert!(routes.is_empty(), "a dead letter to a missing exchange is dropped");
    v.topology.route_internally("probe.int", &["k"], &NoHeaders, &mut routes);
    assert_eq!(names(&routes), ["q"]);
    v.bind_exchange("probe.int", "amq.fanout", "");
    assert_eq!(v.route("amq.fanout", ""), ["q"], "by a binding it can be reached");
}

#[test]
fn direct_routes_by_equal_keys() {
    let mut v = Vhost::new();
    for (name, key) in [("k", "k"), ("e", ""), ("k2", "k"), ("star", "*")] {
        v.queue(name);
        v.bind(name, "amq.direct", key, &none());
    }
    for (key, expected) in [("k", "k k2"), ("", "e"), ("K", ""), ("*", "star")] {
        assert_eq!(v.route("amq.direct", key).join(" "), expected, "{key:?}");
    }
}

#[test]
fn fanout_ignores_the_key() {
    let mut v = Vhost::new();
    for (name, key) in [("a", "x"), ("b", ""), ("b", "x")] {
        v.queue(name);
        v.bind(name, "amq.fanout", key, &none());
    }
    assert_eq!(v.route("amq.fanout", "zzz"), ["a", "b"]);
    v.unbind("b", "amq.fanout", "", &none());
    assert_eq!(v.route("amq.fanout", "zzz"), ["a", "b"], "one binding is left");
}

#[test]
fn topic_matches_as_the_table_says() {
    const PATTERNS: [&str; 19] = [
        "#", "*", "*.*", "a.#", "#.a", "a.*", "*.a", "a.#.b", "#.a.#", "a", "", "a..b", "*.#", "#.*", "#.#", "*.*.*",
        "a.*.#", "ab*", "#.b.#.c",
    ];
    let mut v = Vhost::new();
    for pattern in PATTERNS {
        v.queue(&format!("[{pattern}]"));
        v.bind(&format!("[{pattern}]"), "amq.topic", pattern, &none());
    }
    for (key, matching) in [
        ("", "# [] #.#"),
        ("a", "# * a.# #.a #.a.# a *.# #.* #.#"),
        ("b", "# * *.# #.* #.#"),
        ("a.a", "# *.* a.# #.a a.* *.a #.a.# *.# #.* #.# a.*.#"),
        ("a.b", "# *.* a.# a.* a.#.b #.a.# *.# #.* #.# a.*.#"),
        ("a.x.b", "# a.# a.#.b #.a.# *.# #.* #.# *.*.* a.*.#"),
        ("a..b", "# a.# a.#.b #.a.# a..b *.# #.* #.# *.*.* a.*.#"),
        (".", "# *.* *.# #.* #.#"),
        ("a.", "# *.* a.# a.* #.a.# *.# #.* #.# a.*.#"),
        (".a", "# *.* #.a *.a #.a.# *.# #.* #.#"),
        ("abc", "# * *.# #.* #.#"),
        ("b.c", "# *.* *.# #.* #.# #.b.#.c"),
        ("x.b.y.c", "# *.# #.* #.# #.b.#.c"),
        ("*", "# * *.# #.* #.#"),
        ("#", "# * *.# #.* #.#"),
    ] {
        let mut expected: Vec<String> =
            matching.split(' ').map(|p| if p == "[]" { "[]".to_owned() } else { format!("[{p}]") }).collect();
        expected.sort();
        assert_eq!(v.route("amq.topic", key), expected, "{key:?}");
    }
}

/// Patterns with many `#` once took exponential time in other brokers: one publish could stop a node.
#[test]
fn many_hashes_against_a_long_key_are_quick() {
    let mut v = Vhost::new();
    v.queue("q");
    v.queue("never");
    v.bind("q", "amq.topic", &["#"; 12].join("."), &none());
    v.bind("never", "amq.topic", "#.a.#.a.#.a.#.a.#.b", &none());
    v.bind("never", "amq.topic", &format!("{}.b", ["#.a"; 60].join(".")), &none());
    v.bind("never", "amq.topic", &format!("{}.b", ["#.*"; 60].join(".")), &none());
    let key = ["a"; 60].join(".");
    // A backtracking match would not end in this lifetime; these take a fraction of a second.
    for _ in 0..100 {
        assert_eq!(v.route("amq.topic", &key), ["q"]);
    }
    assert_eq!(v.route("amq.topic", &format!("{key}.b")), ["never", "q"]);
}

#[test]
fn patterns_of_client_libraries_with_hashes_in_odd_places_work() {
    let mut v = Vhost::new();
    for pattern in ["*.*.1.#", "#.x"] {
        v.queue(pattern);
        v.bind(pattern, "amq.topic", pattern, &none());
    }
    assert_eq!(v.route("amq.topic", "a.b.1"), ["*.*.1.#"]);
    assert_eq!(v.route("amq.topic", "a.b.1.c.x"), ["#.x", "*.*.1.#"]);
    assert_eq!(v.route("amq.topic", "x"), ["#.x"]);
}

#[test]
fn headers_match_as_the_table_says() {
    let (a1, bx) = (("a", int(1)), ("b", text("x")));
    let mut v = Vhost::new();
    for (name, arguments) in [
        ("all", table([("x-match", text("all")), a1.clone(), bx.clone()])),
        ("any", table([("x-match", text("any")), a1.clone(), bx.clone()])),
        ("def", table([a1.clone(), bx.clone()])),
        ("empty", none()),
        ("anyempty", table([("x-match", text("any"))])),
        ("void", table([("x-match", text("all")), ("a", AMQPValue::Void)])),
        ("xkey", table([("x-match", text("all")), ("x-foo", int(1)), a1.clone()])),
        ("bool", table([("a", AMQPValue::Boolean(true))])),
        ("str1", table([("a", text("1"))])),
        ("dbl", table([("a", AMQPValue::Double(1.0))])),
        ("short", table([("a", AMQPValue::ShortInt(1))])),
        ("long", table([("a", AMQPValue::LongLongInt(1))])),
    ] {
        v.queue(name);
        v.bind(name, "amq.headers", "", &arguments);
    }
    let one = "any empty void xkey dbl short long";
    for (headers, expected) in [
        (table([a1.clone(), bx.clone()]), "all any def empty void xkey dbl short long"),
        (table([a1.clone()]), one),
        (table([bx.clone()]), "any empty"),
        (none(), "empty"),
        (table([("a", int(2))]), "empty void"),
        (table([("a", AMQPValue::Boolean(true))]), "empty void bool"),
        (table([("a", text("1"))]), "empty void str1"),
        (table([("a", AMQPValue::Double(1.0))]), one),
        (table([("a", AMQPValue::Void)]), "empty void"),
        (table([("a", AMQPValue::LongLongInt(1))]), one),
        (table([("a", AMQPValue::ShortShortInt(1))]), one),
        (table([a1, bx, ("c", int(5))]), "all any def empty void xkey dbl short long"),
    ] {
        let mut expected: Vec<&str> = expected.split(' ').collect();
        expected.sort_unstable();
        assert_eq!(v.route_headers("amq.headers", "ignored", &headers), expected, "{headers:?}");
    }
    assert_eq!(v.route("amq.headers", ""), ["empty"], "a message without headers");
}

#[test]
fn names_with_x_count_only_when_the_match_says_so() {
    let mut v = Vhost::new();
    for name in ["all", "any", "all-with-x", "any-with-x"] {
        v.queue(name);
        v.bind(name, "amq.headers", "", &table([("x-match", text(name)), ("x-a", int(1)), ("b", int(1))]));
    }
    let route = |headers: FieldTable| v.route_headers("amq.headers", "", &headers).join(" ");
    assert_eq!(route(table([("x-a", int(1))])), "any-with-x");
    assert_eq!(route(table([("b", int(1))])), "all any any-with-x");
    assert_eq!(route(table([("x-a", int(1)), ("b", int(1))])), "all all-with-x any any-with-x");
    assert_eq!(route(table([("x-match", text("all"))])), "", "x-match itself is never a condition");
}

#[test]
fn header_values_are_compared_exactly() {
    let array = |items: Vec<AMQPValue>| AMQPValue::FieldArray(items.into());
    let big = (1_i64 << 53) + 1;
    let values = [
        AMQPValue::LongLongInt(big),
        AMQPValue::Double((1_i64 << 53) as f64),
        AMQPValue::Double(0.5),
        AMQPValue::Float(2.0),
        AMQPValue::LongUInt(2),
        AMQPValue::Timestamp(u64::MAX),
        AMQPValue::LongLongInt(-1),
        text("ab"),
        AMQPValue::ByteArray(b"ab".to_vec().into()),
        AMQPValue::Boolean(false),
        array(vec![int(1)]),
        array(vec![AMQPValue::LongLongInt(1)]),
        AMQPValue::FieldTable(table([("k", int(1))])),
    ];
    let mut v = Vhost::new();
    for (n, value) in values.iter().enumerate() {
        v.queue(&n.to_string());
        v.bind(&n.to_string(), "amq.headers", "", &table([("a", value.clone())]));
    }
    for (n, value) in values.iter().enumerate() {
        // 2.0 and 2, and the string and the byte array, are equal; everything else differs from everything else.
        let expected = match n {
            3 | 4 => vec!["3".to_owned(), "4".to_owned()],
            7 | 8 => vec!["7".to_owned(), "8".to_owned()],
            _ => vec![n.to_string()],
        };
        assert_eq!(v.route_headers("amq.headers", "", &table([("a", value.clone())])), expected, "{value:?}");
    }
}

/// Headers as they lie in a message: unsorted, and a name may come twice.
struct RawHeaders(&'static [(&'static str, HeaderValue<'static>)]);

impl HeaderSource for RawHeaders {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(&'a [u8], HeaderValue<'a>)) {
        self.0.iter().for_each(|(name, value)| each(name.as_bytes(), value.clone()));
    }
}

#[test]
fn the_first_of_several_headers_with_one_name_counts() {
    let mut v = Vhost::new();
    v.queue("q");
    v.bind("q", "amq.headers", "", &table([("a", int(1)), ("b", AMQPValue::Void)]));
    let route = |headers: &RawHeaders| v.route_headers("amq.headers", "", headers).len();
    let (one, two, other) = (HeaderValue::Int(1), HeaderValue::Int(2), HeaderValue::Other);
    let good: &'static [_] = vec![("b", other.clone()), ("a", one.clone()), ("a", two.clone())].leak();
    let bad: &'static [_] = vec![("b", other), ("a", two), ("a", one)].leak();
    assert_eq!(route(&RawHeaders(good)), 1);
    assert_eq!(route(&RawHeaders(bad)), 0);
    assert!(matches!(RawHeaders(bad).get(b"a"), Some(HeaderValue::Int(2))));
    assert!(!RawHeaders(bad).is_empty() && RawHeaders(&[]).is_empty());
}

#[test]
fn queue_is_listed_once_however_many_bindings_match() {
    let mut v = Vhost::new();
    v.queue("q");
    for pattern in ["a.#", "#", "a.b"] {
        v.bind("q", "amq.topic", pattern, &none());
    }
    assert_eq!(v.route("amq.topic", "a.b"), ["q"]);
}

#[test]
fn several_keys_and_several_calls_list_a_queue_once() {
    let mut v = Vhost::new();
    for n in 0..100 {
        let name = format!("q{n}");
        v.queue(&name);
        v.bind(&name, "amq.fanout", "", &none());
        v.bind(&name, "amq.direct", &format!("k{}", n % 2), &none());
    }
    let mut routes = RouteSet::new();
    v.topology.route_keys("amq.direct", &["k0", "k1", "k0", "nope"], &NoHeaders, &mut routes).expect("routed");
    assert_eq!(routes.len(), 100);
    v.topology.route("amq.fanout", "", &NoHeaders, &mut routes).expect("routed");
    v.topology.route_keys("", &["q1", "q99"], &NoHeaders, &mut routes).expect("routed");
    assert_eq!(routes.len(), 100);
    routes.clear();
    v.topology.route_keys("", &["q1", "q99", "q1"], &NoHeaders, &mut routes).expect("routed");
    assert_eq!(names(&routes), ["q1", "q99"]);
}

#[test]
fn bindings_between_exchanges_are_followed_once() {
    let mut v = Vhost::new();
    for name in ["a", "b", "c"] {
        v.exchange(name, "fanout");
        v.queue(name);
        v.bind(name, name, "", &none());
    }
    v.bind_exchange("b", "a", "");
    v.bind_exchange("c", "b", "");
    v.bind_exchange("a", "c", "");
    v.bind_exchange("a", "a", "");
    v.bind_exchange("c", "a", "");
    for name in ["a", "b", "c"] {
        assert_eq!(v.route(name, "k"), ["a", "b", "c"], "round the circle from {name}");
    }
}

#[test]
fn each_exchange_on_the_way_looks_at_the_key() {
    let mut v = Vhost::new();
    v.queue("q");
    v.bind_exchange("amq.direct", "amq.topic", "a.#");
    v.bind("q", "amq.direct", "a.b", &none());
    assert_eq!(v.route("amq.topic", "a.b"), ["q"]);
    assert_eq!(v.route("amq.topic", "a.c"), Vec::<String>::new());
}

fn with_alternate(v: &mut Vhost, name: &str, argument: &str, alternate: &str) {
    let arguments = table([(argument, text(alternate))]);
    let d = ExchangeDeclare { arguments: &arguments, ..exchange(name, "direct") };
    v.topology.declare_exchange(&d).expect("declared");
}

#[test]
fn alternate_exchange_gets_what_leads_nowhere() {
    for argument in ["alternate-exchange", "x-alternate-exchange"] {
        let mut v = Vhost::new();
        with_alternate(&mut v, "x", argument, "ae");
        assert_eq!(v.route("x", "zz"), Vec::<String>::new(), "it need not exist");
        v.exchange("ae", "fanout");
        for name in ["bound", "rest"] {
            v.queue(name);
        }
        v.bind("bound", "x", "k", &none());
        v.bind("rest", "ae", "", &none());
        assert_eq!(v.route("x", "k"), ["bound"]);
        assert_eq!(v.route("x", "zz"), ["rest"]);
        v.delete_queue("rest");
        assert_eq!(v.route("x", "zz"), Vec::<String>::new());
    }
}

#[test]
fn alternate_exchange_is_asked_once_for_all_keys() {
    let mut v = Vhost::new();
    with_alternate(&mut v, "x", "alternate-exchange", "amq.fanout");
    for name in ["bound", "rest"] {
        v.queue(name);
    }
    v.bind("bound", "x", "k", &none());
    v.bind("rest", "amq.fanout", "", &none());
    let mut routes = RouteSet::new();
    v.topology.route_keys("x", &["zz", "k"], &NoHeaders, &mut routes).expect("routed");
    assert_eq!(names(&routes), ["bound"], "one of the keys leads somewhere");
}

#[test]
fn binding_to_an_exchange_that_leads_nowhere_is_a_way_out() {
    let mut v = Vhost::new();
    with_alternate(&mut v, "x", "alternate-exchange", "amq.fanout");
    v.queue("rest");
    v.bind("rest", "amq.fanout", "", &none());
    v.bind_exchange("amq.direct", "x", "k");
    assert_eq!(v.route("x", "k"), Vec::<String>::new(), "the message was passed on, so the alternate is not asked");
    assert_eq!(v.route("x", "zz"), ["rest"]);
}

#[test]
fn circle_of_alternates_ends() {
    let mut v = Vhost::new();
    with_alternate(&mut v, "a", "alternate-exchange", "b");
    with_alternate(&mut v, "b", "alternate-exchange", "a");
    with_alternate(&mut v, "self", "alternate-exchange", "self");
    v.queue("q");
    assert_eq!(v.route("a", "k"), Vec::<String>::new());
    assert_eq!(v.route("self", "k"), Vec::<String>::new());
    v.bind("q", "b", "k", &none());
    assert_eq!(v.route("a", "k"), ["q"]);
    assert_eq!(v.route("b", "k"), ["q"]);
}

#[test]
fn routes_come_in_the_order_in_which_queues_were_made() {
    let mut v = Vhost::new();
    for n in (0..50).rev() {
        v.queue(&n.to_string());
    }
    for n in 0..50 {
        v.bind(&n.to_string(), "amq.fanout", "", &none());
    }
    let mut routes = RouteSet::new();
    v.topology.route("amq.fanout", "", &NoHeaders, &mut routes).expect("routed");
    assert!(routes.as_slice().is_sorted_by_key(|record| record.id));
}
