//! Random changes and messages, checked against a model that keeps plain lists and tries everything.
