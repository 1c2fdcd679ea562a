"""What both ends of a connection must agree on: the port, message sizes, keepalive."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50151

MESSAGE_LIMIT_BYTES = 16 << 20

_MESSAGES = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
)

# A long answer may be silent for minutes, so both ends probe the connection, and the server must allow the
# client's probes: by default it takes more than one in five minutes for an attack and hangs up.
CLIENT_OPTIONS = (
    *_MESSAGES,
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
SERVER_OPTIONS = (
    *_MESSAGES,
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),  # else two servers share one port and each gets half the calls
)
