//! Grafana's JSON of the dashboards is what their sources in `dashboards` say; `UPDATE_GOLDEN=1` writes it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{all_exist, path, text, yaml};

/// Width of Grafana's grid.
const WIDE: u32 = 24;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dashboard {
    uid: String,
    title: String,
    selector: String,
    variables: Vec<Variable>,
    alerts: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    label: String,
    query: String,
    #[serde(default)]
    all: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    description: String,
    r#type: String,
    width: u32,
    #[serde(default = "short")]
    unit: String,
    #[serde(default)]
    thresholds: Vec<(Option<f64>, String)>,
    #[serde(default)]
    mappings: BTreeMap<i64, String>,
    #[serde(default)]
    text: Option<String>,
    queries: Vec<Query>,
}

fn short() -> String {
    "short".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    expr: String,
    #[serde(default)]
    legend: String,
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Dashboard {
    fn json(&self) -> Value {
        let (mut panels, mut y) = (Vec::new(), 0);
        for row in &self.rows {
            panels.push(json!({"id": panels.len() + 1, "type": "row", "title": row.title, "collapsed": false,
                "gridPos": {"x": 0, "y": y, "w": WIDE, "h": 1}, "panels": []}));
            y += 1;
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > WIDE {
                    (x, y) = (0, y + height);
                    height = 0;
                }
                let place = json!({"x": x, "y": y, "w": panel.width, "h": panel.height()});
                panels.push(panel.json(panels.len() + 1, &place, &self.selector));
                x += panel.width;
                height = height.max(panel.height());
            }
            y += height;
        }
        let datasource = json!({"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
            "hide": 0, "includeAll": false, "multi": false, "options": [], "refresh": 1, "regex": ""});
        let variables: Vec<Value> = [datasource].into_iter().chain(self.variables.iter().map(Variable::json)).collect();
        json!({
            "uid": self.uid, "title": self.title, "tags": ["hello-operator"], "schemaVersion": 39, "version": 1,
            "editable": true, "graphTooltip": 1, "timezone": "browser", "refresh": "30s", "fiscalYearStartMonth": 0,
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": variables},
            "annotations": {"list": [{"name": "Alerts", "datasource": source(), "enable": true, "hide": false,
                "iconColor": "red", "expr": format!("ALERTS{{alertstate=\"firing\",{}}}", self.alerts), "step": "60s",
                "titleFormat": "{{alertname}}", "tagKeys": "severity,pod"}]},
            "links": [{"type": "dashboards", "title": "Hello Operator", "tags": ["hello-operator"], "asDropdown": false,
                "icon": "external link", "includeVars": false, "keepTime": true, "targetBlank": false, "tooltip": "", "url": ""}],
            "panels": panels,
        })
    }
}

impl Variable {
    fn json(&self) -> Value {
        let mut variable = json!({"name": self.name, "label": self.label, "type": "query", "datasource": source(),
            "query": {"query": self.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "hide": 0, "includeAll": self.all, "multi": self.all, "options": [], "refresh": 2, "regex": "", "sort": 1});
        if self.all {
            variable["current"] = json!({"text": ["All"], "value": ["$__all"]});
        }
        variable
    }
}

impl Panel {
    fn height(&self) -> u32 {
        if self.r#type == "stat" { 4 } else { 6 }
    }

    fn json(&self, id: usize, place: &Value, selector: &str) -> Value {
        let targets: Vec<Value> =
            self.queries.iter().zip('A'..).map(|(query, id)| self.target(query, id, selector)).collect();
        json!({
            "id": id, "type": self.r#type, "title": self.title, "description": self.description, "gridPos": place,
            "datasource": source(), "targets": targets, "options": self.options(),
            "fieldConfig": {"defaults": self.defaults(), "overrides": []},
        })
    }

    fn target(&self, query: &Query, id: char, selector: &str) -> Value {
        let expr = query.expr.replace("{S}", &format!("{{{selector}}}")).replace("{S,", &format!("{{{selector},"));
        let instant = self.r#type == "stat";
        json!({"refId": id, "datasource": source(), "expr": expr, "legendFormat": query.legend, "editorMode": "code",
            "instant": instant, "range": !instant})
    }

    fn defaults(&self) -> Value {
        let steps: Vec<Value> = if self.thresholds.is_empty() {
            vec![json!({"color": if self.r#type == "stat" { "text" } else { "green" }, "value": null})]
        } else {
            self.thresholds.iter().map(|(value, color)| json!({"color": color, "value": value})).collect()
        };
        let mut defaults = json!({"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}});
        if !self.mappings.is_empty() {
            let names: serde_json::Map<_, _> =
                self.mappings.iter().map(|(value, text)| (value.to_string(), json!({"text": text}))).collect();
            defaults["mappings"] = json!([{"type": "value", "options": names}]);
        }
        match self.r#type.as_str() {
            "timeseries" => {
                let lines = if self.thresholds.is_empty() { "off" } else { "dashed" };
                defaults["color"] = json!({"mode": "palette-classic"});
                defaults["min"] = json!(0);
                defaults["custom"] = json!({"lineWidth": 1, "fillOpacity": 10, "showPoints": "never",
                    "thresholdsStyle": {"mode": lines}});
            }
            _ => defaults["color"] = json!({"mode": "thresholds"}),
        }
        defaults
    }

    fn options(&self) -> Value {
        match self.r#type.as_str() {
            "stat" => {
                json!({"colorMode": "background", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
                "showPercentChange": false, "percentChangeColorMode": "standard", "wideLayout": true,
                "textMode": self.text.as_deref().unwrap_or("auto"),
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false}})
            }
            "state-timeline" => {
                json!({"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.8,
                "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": false},
                "tooltip": {"mode": "single", "sort": "none"}})
            }
            _ => json!({"legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": true},
                "tooltip": {"mode": "multi", "sort": "desc"}}),
        }
    }
}

#[test]
fn the_json_is_what_the_sources_say() {
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for name in ["operator", "cluster"] {
        let dashboard: Dashboard = yaml(&format!("dashboards/{name}.yaml"));
        let file = format!("charts/hello-operator/files/dashboards/{name}.json");
        let expected = serde_json::to_string_pretty(&dashboard.json()).unwrap() + "\n";
        if update {
            std::fs::write(path(&file), &expected).unwrap();
        }
        assert!(text(&file) == expected, "{file} is not what dashboards/{name}.yaml says; UPDATE_GOLDEN=1 writes it");
        // Where people look for it.
        assert_eq!(text(&format!("dashboards/{name}.json")), expected);
    }
}

#[test]
fn panels_explain_themselves_and_ask_for_metrics_that_exist() {
    for name in ["operator", "cluster"] {
        let dashboard: Dashboard = yaml(&format!("dashboards/{name}.yaml"));
        let mut titles = BTreeSet::new();
        for panel in dashboard.rows.iter().flat_map(|row| &row.panels) {
            let title = &panel.title;
            assert!(titles.insert(title), "{name}: two panels {title}");
            assert!(panel.description.ends_with('.'), "{name}, {title}: {}", panel.description);
            assert!(["stat", "timeseries", "state-timeline"].contains(&panel.r#type.as_str()), "{name}, {title}");
            assert!(panel.width <= WIDE && !panel.queries.is_empty(), "{name}, {title}");
            let bases: Vec<_> = panel.thresholds.iter().map(|(value, _)| *value).collect();
            assert!(bases.is_empty() || bases[0].is_none(), "{name}, {title}: the first threshold is the base");
            for query in &panel.queries {
                all_exist(&query.expr, title);
                assert!(panel.queries.len() == 1 || !query.legend.is_empty(), "{name}, {title}: lines without names");
            }
        }
        for variable in &dashboard.variables {
            all_exist(&variable.query, &variable.name);
        }
    }
}
