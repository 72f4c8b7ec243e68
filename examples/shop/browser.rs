//! A browser for the shop: it keeps its cookie.

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::Body,
    http::{Request, header},
};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

pub(crate) struct Browser {
    shop: Router,
    cookie: String,
}

impl Browser {
    /// Logs a user in.
    pub(crate) async fn login(shop: &Router, user: &str) -> Result<Self> {
        let request = Request::post("/login").body(Body::from(user.to_owned()))?;
        let response = shop.clone().oneshot(request).await?;
        let cookie = response.headers().get(header::SET_COOKIE);
        let cookie = cookie.context("a cookie")?.to_str()?;
        Ok(Self {
            shop: shop.clone(),
            cookie: cookie.split(';').next().unwrap_or_default().to_owned(),
        })
    }

    /// Buys one, under an order number of its own; the status and the answer.
    pub(crate) async fn buy(&self, sku: &str, order: &str) -> Result<(u16, String)> {
        let request = Request::post(format!("/buy/{sku}"))
            .header(header::COOKIE, &self.cookie)
            .header("idempotency-key", order)
            .body(Body::empty())?;
        let response = self.shop.clone().oneshot(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
