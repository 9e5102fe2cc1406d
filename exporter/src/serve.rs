//! Pages over HTTP.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    collectors::Collectors,
    render::{Renderer, Style},
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
        let desk = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut desk = desk.unwrap_or_else(|| Desk {
            page: Page::new(),
            renderer: Renderer::new(self.collectors.clone(), self.style),
            text: Vec::new(),
        });
        source.read(&mut desk.page)?;
        desk.text.clear();
        desk.renderer.render(&desk.page, &mut desk.text);
        let text = Bytes::copy_from_slice(&desk.text);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        Ok(text)
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
