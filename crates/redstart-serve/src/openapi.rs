//! The OpenAPI 3.1 document, made from the routes and their types.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{
    auth::Role,
    config::Config,
    problem,
    route::{Route, Routes, names},
};

/// The document of all routes that have one.
pub(crate) fn document(routes: &Routes, config: &Config) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut make = settings.into_generator();
    let mut paths = Map::new();
    let mut tags: Vec<&str> = Vec::new();
    for route in routes.iter() {
        let Some(operation) = operation(route, &mut make) else {
            continue;
        };
        let family = route.doc.as_ref().map_or("", |doc| doc.family);
        if !tags.contains(&family) {
            tags.push(family);
        }
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation;
    }
    let mut schemas = make.take_definitions(true);
    schemas.insert("Problem".to_owned(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Redstart",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "The patterns people build on Redis and Valkey, over HTTP",
            "description": "Names in paths are percent-encoded. Durations are seconds. Every change takes an Idempotency-Key, except those \
                that grant something which ends by itself: locks, permits, terms, jobs, loads, claims. Every request takes a \
                Request-Timeout. Errors are problems by RFC 9457.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": if config.base_path.0.is_empty() { "/" } else { &config.base_path.0 }}],
        "tags": tags.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {
                "description": "What went wrong",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }},
        },
        "security": [{"token": []}, {}],
    })
}

fn problem_schema() -> Value {
    let kinds: Vec<String> = problem::Kind::ALL
        .iter()
        .map(|kind| format!("urn:redstart:{}", kind.name()))
        .collect();
    json!({
        "type": "object",
        "required": ["type", "title", "status"],
        "properties": {
            "type": {"type": "string", "enum": kinds},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
        },
    })
}

fn operation(route: &Route, make: &mut schemars::SchemaGenerator) -> Option<Value> {
    let doc = route.doc.as_ref()?;
    let mut parameters = Vec::new();
    for name in names(route.path) {
        let example = doc.params.iter().find(|(known, _)| *known == name);
        parameters.push(json!({
            "name": name, "in": "path", "required": true, "schema": {"type": "string"},
            "example": example.map_or("", |(_, example)| example),
        }));
    }
    for (name, meaning, example) in &doc.query {
        parameters.push(json!({
            "name": name, "in": "query", "description": meaning,
            "schema": {"type": if example.is_number() { "integer" } else { "string" }}, "example": example,
        }));
    }
    parameters.push(json!({
        "name": "namespace", "in": "query", "schema": {"type": "string"},
        "description": "Whose keys; the configuration has a default",
    }));
    if route.repeatable {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255},
            "description": "A repeat with the same key is answered as the first request was, and not carried out again",
        }));
    }
    parameters.push(json!({
        "name": "Request-Timeout", "in": "header", "schema": {"type": "number", "minimum": 0.001, "maximum": 3600},
        "description": "Seconds after which the answer is of no use: 504 for a request that reads, in-doubt for a change",
    }));
    let mut responses = Map::new();
    for (status, meaning, schema) in &doc.replies {
        let mut response = json!({"description": meaning});
        if let Some(schema) = schema {
            let schema = schema(make);
            response["content"] = json!({"application/json": {"schema": schema}});
        } else if *status < 400 {
            response["content"] = json!({"text/event-stream": {"schema": {"type": "string"}}});
        } else {
            response["content"] = json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
        }
        responses.insert(status.to_string(), response);
    }
    responses.insert(
        "default".into(),
        json!({"$ref": "#/components/responses/Problem"}),
    );
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [doc.family],
        "summary": doc.summary,
        "parameters": parameters,
        "responses": responses,
        "x-role": route.role.to_string(),
    });
    if route.role == Role::Read {
        operation["x-reads-only"] = true.into();
    }
    if let Some((schema, example)) = &doc.body {
        let schema = schema(make);
        operation["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": schema, "example": example}},
        });
    }
    Some(operation)
}

/// `/v1/locks/{name}:acquire` by POST is `locksAcquire`.
fn operation_id(route: &Route) -> String {
    let method = match route.path.contains("}:") || route.path.contains("s:") {
        true => String::new(),
        false => route.method.as_str().to_lowercase(),
    };
    let mut id = method;
    let words = route
        .path
        .trim_start_matches("/v1/")
        .split(['/', ':', '-', '{', '}']);
    let named = words.filter(|word| !word.is_empty());
    for word in named {
        match id.is_empty() {
            true => id.push_str(word),
            false => {
                let (first, rest) = word.split_at(1);
                id.push_str(&first.to_uppercase());
                id.push_str(rest);
            }
        }
    }
    id
}
