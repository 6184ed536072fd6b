//! Topic matching (section 3.1.3.3 of the specification): patterns of words separated by dots, where `*` stands for one
//! word and `#` for any number of words, none among them.
//!
//! Patterns share a trie. A routing key is matched by walking the trie with a set of nodes at once, one step per word.
//! A node is in the set at most once: a word node or `*` node can only be entered from its parent, and a `#` node, once
//! entered, stays for the rest of the key (it takes any further word), so those are kept in a list of their own that
//! only grows. A key therefore takes at most (words × nodes that match some beginning of it) steps, however many `#` a
//! pattern has; nodes that match nothing are never looked at.
//!
//! Words: the empty key and the empty pattern have none; otherwise there is one more than there are dots, and words may
//! be empty (`a.` has two).

use std::collections::HashMap;

use super::route::Found;
use super::targets::{Target, Targets};
use super::unique::Unique;

/// Any one word.
const ONE_WORD: &str = "*";
/// Any number of words.
const MANY_WORDS: &str = "#";

/// The place of the node for the pattern without words.
const ROOT: u32 = 0;

/// The nodes that a routing key has led to so far. Kept by the caller, so that matching does not allocate.
#[derive(Debug, Default)]
pub(super) struct TopicScratch {
    current: Vec<u32>,
    next: Vec<u32>,
    /// The `#` nodes entered so far.
    hashes: Unique<u32>,
}

/// The patterns of a topic exchange's bindings.
///
/// Invariants: every node but the root has targets or children; a free place has neither.
#[derive(Debug)]
pub(super) struct TopicTrie {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

/// The end of a pattern, or of the beginning of one. Children are places in the trie.
#[derive(Debug, Default)]
struct Node {
    words: HashMap<Box<str>, u32>,
    one_word: Option<u32>,
    many_words: Option<u32>,
    targets: Targets,
}

impl Node {
    fn child(&self, word: &str) -> Option<u32> {
        match word {
            ONE_WORD => self.one_word,
            MANY_WORDS => self.many_words,
            word => self.words.get(word).copied(),
        }
    }

    fn set_child(&mut self, word: &str, child: u32) {
        match word {
            ONE_WORD => self.one_word = Some(child),
            MANY_WORDS => self.many_words = Some(child),
            word => {
                self.words.insert(word.into(), child);
            }
        }
    }

    fn remove_child(&mut self, word: &str) {
        match word {
            ONE_WORD => self.one_word = None,
            MANY_WORDS => self.many_words = None,
            word => {
                self.words.remove(word);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.one_word.is_none() && self.many_words.is_none() && self.targets.is_empty()
    }
}

impl Default for TopicTrie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], free: Vec::new() }
    }
}

/// The words of a routing key or pattern.
fn words(key: &str) -> impl Iterator<Item = &str> {
    // `split` sees one empty word in the empty key.
    key.split('.').filter(move |_| !key.is_empty())
}

impl TopicTrie {
    pub(super) fn add(&mut self, pattern: &str, target: &Target) {
        let mut at = ROOT;
        for word in words(pattern) {
            at = match self.nodes[at as usize].child(word) {
                Some(child) => child,
                None => {
                    let child = self.free.pop().unwrap_or_else(|| {
                        self.nodes.push(Node::default());
                        u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 words in all patterns")
                    });
                    self.nodes[at as usize].set_child(word, child);
                    child
                }
            };
        }
        self.nodes[at as usize].targets.add(target);
    }

    pub(super) fn remove(&mut self, pattern: &str, target: &Target) {
        let mut at = ROOT;
        let mut path = Vec::new();
        for word in words(pattern) {
            path.push((at, word));
            at = self.nodes[at as usize].child(word).expect("the pattern of a binding is in the trie");
        }
        self.nodes[at as usize].targets.remove(target);
        while let Some((parent, word)) = path.pop()
            && self.nodes[at as usize].is_empty()
        {
            // A map that once had many children gives its memory back.
            self.nodes[at as usize] = Node::default();
            self.free.push(at);
            self.nodes[parent as usize].remove_child(word);
            at = parent;
        }
    }

    /// Adds the targets of all patterns that match the key; true when there is at least one.
    pub(super) fn collect(&self, key: &str, scratch: &mut TopicScratch, found: &mut Found) -> bool {
        let TopicScratch { current, next, hashes } = scratch;
        current.clear();
        hashes.clear();
        self.enter(ROOT, current, hashes);
        for word in words(key) {
            next.clear();
            // A `#` node that is entered by this word starts with the next one.
            for n in 0..hashes.len() {
                self.step(hashes.as_slice()[n], word, next, hashes);
            }
            for &node in &*current {
                self.step(node, word, next, hashes);
            }
            std::mem::swap(current, next);
            if current.is_empty() && hashes.len() == 0 {
                return false;
            }
        }
        let mut any = false;
        for &node in current.iter().chain(hashes.as_slice()) {
            any |= self.nodes[node as usize].targets.collect(found);
        }
        any
    }

    /// Follows a word from a node.
    fn step(&self, node: u32, word: &str, entered: &mut Vec<u32>, hashes: &mut Unique<u32>) {
        let node = &self.nodes[node as usize];
        if let Some(child) = node.one_word {
            self.enter(child, entered, hashes);
        }
        if !node.words.is_empty()
            && let Some(&child) = node.words.get(word)
        {
            self.enter(child, entered, hashes);
        }
    }

    /// Notes a node that takes a word, and the `#` below it, which may stand for no word at all (as may one below that).
    fn enter(&self, node: u32, entered: &mut Vec<u32>, hashes: &mut Unique<u32>) {
        entered.push(node);
        let mut below = self.nodes[node as usize].many_words;
        while let Some(hash) = below
            && hashes.insert(&hash)
        {
            below = self.nodes[hash as usize].many_words;
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.nodes[ROOT as usize].is_empty() && self.free.len() + 1 == self.nodes.len()
    }
}
