"""A collector of OpenTelemetry: decodes the spans that arrive and writes each as a line of JSON.

The first request is refused with 503, so that it has to be sent again."""

import http.server
import json

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


class Collector(http.server.BaseHTTPRequestHandler):
    refused = False

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not Collector.refused:
            Collector.refused = True
            self.send_response(503)
            self.end_headers()
            return
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            name = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {a.key: json_format.MessageToDict(a.value) for a in span.attributes}
                    print(json.dumps({
                        "path": self.path,
                        "type": self.headers["content-type"],
                        "key": self.headers["x-key"],
                        "service": name.get("service.name"),
                        "scope": scope.scope.name,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "kind": span.kind,
                        "took": span.end_time_unix_nano - span.start_time_unix_nano,
                        "failed": span.status.code == 2,
                        "attributes": {k: next(iter(v.values())) for k, v in values.items()},
                    }), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_address[1], flush=True)
server.serve_forever()
