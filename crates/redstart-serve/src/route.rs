//! The routes: what a path means, who may ask, and what the document says of it.
//!
//! A path is `/v1/locks/{name}:acquire`: names are percent-encoded, so a `:` or `/` in a name is `%3A` or `%2F` and the
//! verb after the last `:` is never part of a name.

use std::{pin::Pin, sync::Arc};

use http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use crate::{
    auth::Role,
    call::{Call, decode_segment},
    problem::{Kind, Problem},
    reply::Reply,
};

pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;
pub(crate) type Handler = Arc<dyn Fn(Call) -> Answer + Send + Sync>;

/// One operation of the API, or one page.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) role: Role,
    pub(crate) handler: Handler,
    /// For the document; pages have none.
    pub(crate) doc: Option<Doc>,
    /// Whether it may wait for long, and so counts among the long polls.
    pub(crate) waits: bool,
    /// Whether it changes anything.
    pub(crate) writes: bool,
    /// Whether an `Idempotency-Key` is honoured.
    pub(crate) repeatable: bool,
    /// What the audit log calls it, if it is a change by hand.
    pub(crate) change: Option<&'static str>,
}

/// What the document says of a route.
pub(crate) struct Doc {
    pub(crate) family: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) query: Vec<(&'static str, &'static str, Value)>,
    pub(crate) params: Vec<(&'static str, &'static str)>,
    pub(crate) body: Option<(MakeSchema, Value)>,
    pub(crate) replies: Vec<(u16, &'static str, Option<MakeSchema>)>,
}

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

impl Route {
    pub(crate) fn new<F, Fut>(method: Method, path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        let reads = method == Method::GET;
        Self {
            method,
            path,
            role: if reads { Role::Read } else { Role::Operate },
            handler: Arc::new(move |call| Box::pin(handler(call))),
            doc: None,
            waits: false,
            writes: !reads,
            repeatable: !reads,
            change: None,
        }
    }

    pub(crate) fn get<F, Fut>(path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self::new(Method::GET, path, handler)
    }

    pub(crate) fn post<F, Fut>(path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self::new(Method::POST, path, handler)
    }

    pub(crate) fn put<F, Fut>(path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self::new(Method::PUT, path, handler)
    }

    pub(crate) fn delete<F, Fut>(path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply, Problem>> + Send + 'static,
    {
        Self::new(Method::DELETE, path, handler)
    }

    /// Whether it is a change that an operator makes, which the audit log remembers.
    pub(crate) fn is_by_hand(&self) -> bool {
        self.writes && self.role == Role::Admin
    }

    /// It is a change that an operator makes, and the audit log calls it this.
    pub(crate) fn by_hand(mut self, change: &'static str) -> Self {
        self.change = Some(change);
        self.role(Role::Admin)
    }

    pub(crate) fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// It may wait for long. What such a change grants ends on its own.
    pub(crate) fn waits(mut self) -> Self {
        self.waits = true;
        self.grants()
    }

    /// It grants something that ends on its own: a repeat cannot be answered as the first request was, because the grant
    /// may have ended and another may have it.
    pub(crate) fn grants(mut self) -> Self {
        self.repeatable = false;
        self
    }

    /// It is a POST that changes nothing.
    pub(crate) fn reads(mut self) -> Self {
        self.role = Role::Read;
        self.writes = false;
        self.repeatable = false;
        self
    }

    pub(crate) fn doc(mut self, family: &'static str, summary: &'static str) -> Self {
        self.doc = Some(Doc {
            family,
            summary,
            query: Vec::new(),
            params: Vec::new(),
            body: None,
            replies: Vec::new(),
        });
        self
    }

    fn document(mut self, change: impl FnOnce(&mut Doc)) -> Self {
        if let Some(doc) = &mut self.doc {
            change(doc);
        }
        self
    }

    /// A name in the path, with an example.
    pub(crate) fn param(self, name: &'static str, example: &'static str) -> Self {
        self.document(|doc| doc.params.push((name, example)))
    }

    pub(crate) fn query(
        self,
        name: &'static str,
        meaning: &'static str,
        example: impl Into<Value>,
    ) -> Self {
        self.document(|doc| doc.query.push((name, meaning, example.into())))
    }

    pub(crate) fn body<T: JsonSchema>(self, example: Value) -> Self {
        self.document(|doc| doc.body = Some((|make| make.subschema_for::<T>(), example)))
    }

    /// The first one is what the example gets.
    pub(crate) fn reply<T: JsonSchema>(self, status: u16, meaning: &'static str) -> Self {
        let schema: MakeSchema = |make| make.subschema_for::<T>();
        self.document(|doc| doc.replies.push((status, meaning, Some(schema))))
    }

    /// A reply without a JSON body of its own: a problem, or events.
    pub(crate) fn status(self, status: u16, meaning: &'static str) -> Self {
        self.document(|doc| doc.replies.push((status, meaning, None)))
    }

    /// The values of the names in the path, if the path is this route's.
    fn matches<'p>(&self, path: &'p str) -> Option<Vec<(&'static str, &'p str)>> {
        let mut params = Vec::new();
        let mut given = path.split('/');
        let mut wanted = self.path.split('/');
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return Some(params),
                (Some(wanted), Some(given)) => match parse(wanted) {
                    Segment::Text(text) if text == given => {}
                    Segment::Param { name, verb } => {
                        let value = match verb {
                            None if given.contains(':') && self.path.starts_with("/v1/") => {
                                return None;
                            }
                            None => given,
                            Some(verb) => given.strip_suffix(verb)?.strip_suffix(':')?,
                        };
                        params.push((name, value));
                    }
                    Segment::Text(_) => return None,
                },
                _ => return None,
            }
        }
    }
}

enum Segment {
    Text(&'static str),
    Param {
        name: &'static str,
        verb: Option<&'static str>,
    },
}

fn parse(segment: &'static str) -> Segment {
    let Some((name, verb)) = segment.strip_prefix('{').and_then(|s| s.split_once('}')) else {
        return Segment::Text(segment);
    };
    Segment::Param {
        name,
        verb: verb.strip_prefix(':'),
    }
}

/// The names in a path, in order.
pub(crate) fn names(path: &'static str) -> Vec<&'static str> {
    let params = path.split('/').filter_map(|segment| match parse(segment) {
        Segment::Param { name, .. } => Some(name),
        Segment::Text(_) => None,
    });
    params.collect()
}

/// All routes.
#[derive(Default)]
pub(crate) struct Routes(Vec<Route>);

/// What a path was found to be.
pub(crate) struct Found<'r> {
    pub(crate) route: &'r Route,
    pub(crate) params: Vec<(&'static str, String)>,
}

impl Routes {
    pub(crate) fn add(&mut self, route: Route) {
        self.0.push(route);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }

    pub(crate) fn find(
        &self,
        method: &Method,
        path: &str,
        longest: usize,
    ) -> Result<Found<'_>, Problem> {
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let mut allowed = Vec::new();
        for route in &self.0 {
            let Some(params) = route.matches(path) else {
                continue;
            };
            if route.method != method {
                allowed.push(route.method.as_str());
                continue;
            }
            let params = params
                .into_iter()
                .map(|(name, value)| Ok((name, decode_segment(value, longest)?)));
            return Ok(Found {
                route,
                params: params.collect::<Result<_, Problem>>()?,
            });
        }
        if allowed.is_empty() {
            return Err(Problem::not_found("resource"));
        }
        let problem = Problem::new(Kind::MethodNotAllowed);
        match http::HeaderValue::try_from(allowed.join(", ")) {
            Ok(value) => Err(problem.header(http::header::ALLOW, value)),
            Err(_) => Err(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &'static str) -> Route {
        Route::post(path, |_| async { Err(Problem::new(Kind::NotFound)) })
    }

    #[test]
    fn a_verb_is_never_part_of_a_name() {
        let mut routes = Routes::default();
        routes.add(route("/v1/locks/{name}:acquire"));
        routes.add(route("/v1/caches/{name}/{key}"));
        let find = |path: &str| {
            let found = routes.find(&Method::POST, path, 64);
            found.map(|found| (found.route.path, found.params))
        };
        let (_, params) = find("/v1/locks/order%3A5:acquire").unwrap();
        assert_eq!(params, [("name", "order:5".to_owned())]);
        let (_, params) = find("/v1/caches/p/a%2Fb").unwrap();
        assert_eq!(params[1], ("key", "a/b".to_owned()));
        for bad in [
            "/v1/locks/order:renew",
            "/v1/locks/:acquire",
            "/v1/locks/x",
            "/v1/caches/p/x:y",
            "/v1/caches/p/%FF",
            "/v1/caches/p/%00",
            "/v1/caches/p",
            "/v1/caches/p/q/r",
            "//v1",
        ] {
            assert!(find(bad).is_err(), "{bad}");
        }
        let long = format!("/v1/caches/p/{}", "x".repeat(65));
        assert!(find(&long).is_err());
        let wrong = routes.find(&Method::GET, "/v1/caches/p/q", 64);
        assert_eq!(wrong.err().unwrap().kind, Kind::MethodNotAllowed);
    }
}
