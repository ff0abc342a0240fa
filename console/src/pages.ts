// The pages: section of the navigation, keyboard shortcut, and the equivalent command.

export interface PageEntry { page: string; title: string; key: string; command: string; admin?: boolean }
export interface Section { name: string; pages: PageEntry[] }

// prettier-ignore
export const SECTIONS: readonly Section[] = [
  { name: "Now", pages: [
    { page: "overview", title: "Overview", key: "o", command: "scale0 status" },
    { page: "topology", title: "Topology", key: "y", command: "scale0 topology" },
    { page: "services", title: "Services", key: "s", command: "scale0 services" },
    { page: "queues", title: "Queues", key: "q", command: "scale0 queues" },
    { page: "tasks", title: "Tasks", key: "t", command: "scale0 task list" },
    { page: "clients", title: "Clients", key: "c", command: "scale0 clients" },
  ] },
  { name: "Monitoring", pages: [
    { page: "checks", title: "Checks", key: "h", command: "scale0 checks" },
    { page: "incidents", title: "Incidents", key: "i", command: "scale0 incidents" },
    { page: "agents", title: "Agents", key: "a", command: "scale0 agents" },
    { page: "silences", title: "Silences", key: "l", command: "scale0 silence list" },
  ] },
  { name: "History", pages: [
    { page: "availability", title: "Availability", key: "v", command: "scale0 report availability" },
    { page: "trends", title: "Trends", key: "r", command: "scale0 report capacity" },
    { page: "events", title: "Events", key: "e", command: "scale0 events tail -f" },
    { page: "audit", title: "Audit", key: "u", command: "scale0 audit" },
  ] },
  { name: "Settings", pages: [
    { page: "config", title: "Configuration", key: "f", command: "scale0 config show" },
    { page: "access", title: "Access", key: "k", command: "scale0 access list", admin: true },
  ] },
];

export const PAGES: readonly PageEntry[] = SECTIONS.flatMap((section) => section.pages);
