//! Pages over HTTP.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    collectors::Collectors,
    render::{Format, Renderer, Style},
    source::{Page, ReadError, Source},
};

/// Renders sources, one or many, with memory that is reused from scrape to scrape.
#[derive(Debug)]
pub struct Pages {
    collectors: Arc<Collectors>,
    style: Style,
    idle: Mutex<Vec<Desk>>,
}

/// What one rendering works on.
#[derive(Debug)]
struct Desk {
    page: Page,
    renderer: Renderer,
    text: Vec<u8>,
}

impl Pages {
    /// Pages with the families of `collectors`.
    pub fn new(collectors: Arc<Collectors>, style: Style) -> Self {
        Self { collectors, style, idle: Mutex::new(Vec::new()) }
    }

    /// What `source` reads now, as text.
    pub fn render(&self, source: &dyn Source) -> Result<Bytes, ReadError> {
        let mut desk = self.desk();
        source.read(&mut desk.page)?;
        desk.text.clear();
        desk.renderer.render(&desk.page, &mut desk.text);
        let text = Bytes::copy_from_slice(&desk.text);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        Ok(text)
    }

    /// What `source` reads now, in either form; in OpenMetrics without the end of the page.
    pub fn text(&self, source: &dyn Source, format: Format) -> Result<Vec<u8>, ReadError> {
        let mut desk = self.desk();
        source.read(&mut desk.page)?;
        let mut text = Vec::with_capacity(desk.text.len());
        desk.renderer.render_as(&desk.page, format, &mut text);
        desk.text.resize(text.len(), 0); // the size of the next
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        Ok(text)
    }

    fn desk(&self) -> Desk {
        let desk = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        desk.unwrap_or_else(|| Desk {
            page: Page::new(),
            renderer: Renderer::new(self.collectors.clone(), self.style),
            text: Vec::new(),
        })
    }

    /// The answer to a scrape of `source`: its page, or 500 with the reason.
    pub fn answer(&self, source: &dyn Source) -> Response {
        match self.render(source) {
            Ok(text) => ([(header::CONTENT_TYPE, web::pages::TEXT)], text).into_response(),
            Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
        }
    }
}

/// `GET /metrics`: the page of `source`.
pub fn router(source: Arc<dyn Source>, pages: Arc<Pages>) -> Router {
    Router::new().route("/metrics", get(move || async move { pages.answer(&*source) }))
}

/// Content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The form that a scrape asks for, and its content type: OpenMetrics where the client prefers it or takes it as gladly.
pub fn negotiated(headers: &HeaderMap) -> (Format, &'static str) {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut text) = (0.0_f32, 0.0_f32);
    for range in accepted.flat_map(|value| value.split(',')).take(64) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut version) = (1.0_f32, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "q" => quality = value.trim().parse::<f32>().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
                "version" => version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        match kind.as_str() {
            "application/openmetrics-text" if version.is_none_or(|version| ["0.0.1", "1.0.0"].contains(&version)) => {
                open = open.max(quality);
            }
            "text/plain" | "text/*" | "*/*" => text = text.max(quality),
            _ => {}
        }
    }
    if open > 0.0 && open >= text { (Format::OpenMetrics, OPEN_METRICS) } else { (Format::Text, web::pages::TEXT) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_form_is_the_one_that_the_client_prefers() {
        let open = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            negotiated(&headers).0 == Format::OpenMetrics
        };
        // What Prometheus 2.42 and 3 send.
        assert!(open(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
        assert!(open(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5,*/*;q=0.2"
        ));
        assert!(!open("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5"));
        assert!(!open("*/*") && !open("application/openmetrics-text;version=9;q=1") && !open("application/openmetrics-text;q=x"));
        assert!(negotiated(&HeaderMap::new()).0 == Format::Text);
    }
}
